"""The training loop as it was, for ``--variant broken`` and ``patched``: it prints what its team saw.

``patched`` is the advice that circulated: clamped logits (in model.py) and losses, a limit on gradient norms,
batches skipped by hand, and an end after ten of them.
"""

import itertools

import torch


def train(work, steps, max_norm, *, patched):
    """Train without halfguard; return the steps taken and the largest logit that a step saw."""
    params = [p for group in work.optimizer.param_groups for p in group["params"]]
    taken = skipped = 0
    largest = []
    work.model.student.head.register_forward_hook(
        lambda *a: largest.append(a[-1].detach().abs().max())
    )
    for step, batch in enumerate(itertools.islice(work.batches(), steps)):
        total, kd, ce = work.model(*batch)
        if not kd.isfinite():  # cross-entropy only when KD fails
            total, kd = work.model.alpha_ce * ce, torch.zeros(())
        if patched:
            total = total.clamp(0, 6)
        if not total.isfinite():
            values = f"total_loss={total.item():.4f}, kd={kd.item():.4f}, ce={ce.item():.4f}"
            print(f"step {step}: Numerical issue: {values}")
            skipped += 1
            if skipped == 10:
                print("Too many NaN batches, stopping training")
                break
            continue
        skipped = 0
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
        if not patched or norm <= 2.0:
            work.optimizer.step()
            taken += 1
        work.optimizer.zero_grad()
    return taken, max(x.item() for x in largest if x.isfinite())
