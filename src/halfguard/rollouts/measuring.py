"""``mismatch``: recompute the tokens of a rollout in several precisions, and split the difference."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.errors import UsageError
from halfguard.numerics.agreement import agreement, by_length, ratio_of_k3, size
from halfguard.records.mismatch import Agreement, Cause, MismatchReport
from halfguard.rollouts.causes import Evidence, Side, find_cause, nearest_dtype
from halfguard.rollouts.reading import Rollout
from halfguard.rollouts.scoring import CHUNK, Scorer, Variant, has_head, logits_of
from halfguard.workload.rounding import rounding

_HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_ENOUGH = 0.01  # share of tokens outside the clip range that a precision may have
_LINES = 3
_TAPED = 256  # tokens


def mismatch(
    model: nn.Module,
    rollouts: Sequence[Rollout],
    *,
    previous: nn.Module | None = None,
    temperature: float = 1.0,
    rollout_dtype: str = "bfloat16",
    trainer_dtype: str = "bfloat16",
    clip: float = 0.1,
    lines: bool = True,
) -> MismatchReport:
    """Explain why rollout and trainer have different log-probabilities of the same tokens.

    ``model`` is the policy that the trainer has, ``previous`` an older one that may have made the rollout.
    Both are causal language models; ``model(input_ids=ids)`` returns logits. The dtypes are those that both
    sides should have: "float16", "bfloat16" or "float32". A ratio of probabilities outside 1 - ``clip`` to
    1 + ``clip`` counts as outside. With ``lines`` the lines that round most are named.
    """
    started = time.perf_counter()
    for dtype in (rollout_dtype, trainer_dtype):
        if dtype not in (*_HALF, "float32"):
            raise UsageError(f"{dtype!r} is not float16, bfloat16 or float32.")
    scorer = Scorer(_in_fp32(model), rollouts, temperature)
    older = None if previous is None else Scorer(_in_fp32(previous), rollouts, temperature)
    scored = {one.name: scorer.score(one) for one in _variants(scorer.model)}
    exact = scorer.exact
    noise = {name: scored[name] - exact for name in _HALF}
    noise["float32"] = torch.full_like(exact, 1e-5)
    sizes = {name: size(one) for name, one in noise.items()}
    rollout = _recorded([row.logprobs for row in rollouts])
    recorded = [row.trainer for row in rollouts if row.trainer is not None]
    is_recorded = len(recorded) == len(rollouts)
    trainer = _recorded(recorded) if is_recorded else scored.get(trainer_dtype, exact)

    def causes() -> Iterator[Cause]:
        sides: list[tuple[Side, Tensor, str]] = [("rollout", rollout, rollout_dtype)]
        sides += [("trainer", trainer, trainer_dtype)] if is_recorded else []
        for side, numbers, dtype in sides:
            found = find_cause(Evidence(side, numbers, scorer, noise[dtype], sizes, older))
            if found is not None:
                yield found

    found = tuple(causes())
    decoded = {name: _decoded(scorer, dtype) for name, dtype in _HALF.items()}
    parts = _parts(scorer, scored, decoded, trainer_dtype, size(rollout - exact), found)
    if older is not None:
        parts["policy change"] = size(older.exact - exact)
    lengths = [len(row.completion) for row in rollouts]
    positions = torch.cat([torch.arange(one) for one in lengths])
    ratio = ratio_of_k3(noise["bfloat16"], noise["float16"], lengths)
    variants = tuple(agreement(name, one, exact, clip) for name, one in scored.items())
    same = tuple(
        agreement(f"{name}, decoded", one, scored[name][: len(one)], clip)
        for name, one in decoded.items()
        if one is not None
    )
    return MismatchReport(
        sequences=len(rollouts),
        tokens=len(exact),
        clip=clip,
        trainer="recorded" if is_recorded else trainer_dtype,
        rollout_dtype=nearest_dtype(size(rollout - exact), sizes),
        observed=agreement("rollout and trainer", rollout, trainer, clip),
        parts=parts,
        variants=variants,
        same_precision=same,
        lengths=by_length(rollout - trainer, positions, clip),
        causes=found,
        bf16_over_fp16=ratio[0],
        ratio_low=ratio[1],
        ratio_high=ratio[2],
        recommended=_recommend(same or variants),
        lines=tuple(_lines(scorer, trainer_dtype)) if lines else (),
        seconds=time.perf_counter() - started,
    )


def _in_fp32(model: nn.Module) -> nn.Module:
    """Return the model with FP32 weights: itself, or a copy."""
    is_wide = all(p.dtype is torch.float32 for p in model.parameters())
    return model if is_wide else copy.deepcopy(model).float()


def _recorded(rows: Sequence[Sequence[float] | None]) -> Tensor:
    return torch.tensor([one for row in rows for one in row or ()], dtype=torch.float64)


def _variants(model: nn.Module) -> list[Variant]:
    """Return the precisions from the cheapest on, and the same precision in chunks of one."""
    heads = (False, True) if has_head(model) else (False,)
    made = [Variant(dtype, head) for dtype in _HALF.values() for head in heads]
    return [*made, *(Variant(dtype, chunk=1) for dtype in _HALF.values())]


def _parts(
    scorer: Scorer,
    scored: dict[str, Tensor],
    decoded: dict[str, Tensor | None],
    trainer: str,
    observed: float,
    causes: Sequence[Cause],
) -> dict[str, float]:
    """Return the sizes of what rollout and trainer add to the difference."""
    cause = next((one for one in causes if one.side == "rollout"), None)
    left = observed if cause is None else cause.rounding if math.isnan(cause.after) else cause.after
    parts = {"rounding of the rollout": min(left, observed)}
    if trainer in _HALF:
        own = scored[trainer]
        parts["rounding of the trainer"] = size(own - scorer.exact)
        name = f"chunks of 1, not {CHUNK}, in the trainer"
        parts[name] = size(scored[Variant(_HALF[trainer], chunk=1).name] - own)
        cached = decoded[trainer]
        if cached is not None:
            parts["decoding with a KV cache"] = size(cached - own[: len(cached)])
    parts["not rounding"] = math.sqrt(max(0.0, observed**2 - left**2))
    return parts


def _decoded(scorer: Scorer, dtype: torch.dtype) -> Tensor | None:
    try:
        return scorer.decode(dtype)
    except (TypeError, AttributeError):  # no cache
        return None


def _recommend(variants: Sequence[Agreement]) -> str:
    """Return the cheapest precision that keeps tokens in the clip range, if both sides have it."""
    good = (one.name for one in variants if one.outside <= _ENOUGH and "one by one" not in one.name)
    return next(good, "float32").removesuffix(", decoded")


def _lines(scorer: Scorer, dtype: str) -> Iterator[str]:
    """Yield the lines whose rounding moves the log-probabilities of one completion most."""
    if dtype not in _HALF:
        return
    row = scorer.rows[0]
    ids = torch.tensor([(*row.prompt, *row.completion)[-_TAPED:]], device=scorer.device)

    def loss(model: Any, ids: Tensor) -> Tensor:
        logits = logits_of(model(input_ids=ids))
        return nn.functional.cross_entropy(logits[0, :-1].float(), ids[0, 1:])

    try:
        report = rounding(scorer.model, loss, ids, precision=dtype)
    except UsageError:  # not finite, or nothing is trained
        return
    for found in sorted(report.lines, key=lambda line: -line.loss_rms)[:_LINES]:
        what = found.rounding if found.rounding != "operation" else ", ".join(found.ops[:2])
        yield f"{found.place}: {found.code} ({what})"
