"""The ENTRY of the example: ``workload.py:job``, and one function for each variant."""

from functools import partial
from pathlib import Path

import torch
import yaml
from model import Distillation
from prepare import load
from torch.nn import functional

import halfguard as hg

MODES = yaml.safe_load((Path(__file__).parent / "config.yaml").read_text())["modes"]
HELD_OUT = 256  # rows for validation


def loss_fn(model, batch):
    return model(*batch)[0]


def make_batches(rows, seed, size):
    noise = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(HELD_OUT, len(rows["student"]), (size,), generator=noise)
        yield tuple(rows[name][chosen] for name in ("student", "teacher", "places"))


@torch.no_grad()
def evaluate(model, tokens):
    """Return the student's perplexity on rows that it was not trained on."""
    logits = model.student(tokens.clamp(min=0))[:, :-1].float()
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    return {"perplexity": loss.exp()}


def make_optimizer(student, mode):
    router = list(student.router.parameters())
    others = [p for name, p in student.named_parameters() if not name.startswith("router.")]
    return torch.optim.AdamW(
        [
            {"params": others, "lr": mode["student_lr"]},
            {"params": router, "lr": mode["router_lr"]},
        ]
    )


def job(seed, variant="cured", mode=None, batch_size=8):
    mode = mode or MODES["from_scratch"]
    data = load()
    weights = {name: mode[name] for name in ("temperature", "alpha_kd", "alpha_ce")}
    model = Distillation(data, variant, **weights)
    if mode["start"] == "trained":
        model.student.load_state_dict(data["student"])
    if variant in ("broken", "patched"):
        model.half()  # --model_dtype float16
    return hg.Workload(
        model,
        loss_fn,
        lambda: make_batches(data["rows"], seed, batch_size),
        make_optimizer(model.student, mode),
        lambda model: evaluate(model, data["rows"]["student"][:HELD_OUT]),
        clip_norm=mode["max_norm"],
    )


broken = partial(job, variant="broken")
patched = partial(job, variant="patched")
epsilon = partial(job, variant="epsilon")
