"""What rounding cannot explain: each known cause is repeated, and named if the difference then vanishes.

Rounding explains a difference of the size that the model shows by itself: half weights against FP32, on the
same tokens. Two kernels round differently, so up to twice that size counts as rounding. What is larger is a
bug. A cause is named only if repeating it brings the difference down to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from halfguard.numerics.agreement import size
from halfguard.records.mismatch import Cause, CauseKind
from halfguard.rollouts.scoring import Scorer, Variant, logprobs

ROUNDING = 2.0  # times the rounding of the model itself: both sides round
_TEMPERATURES = torch.logspace(math.log10(0.25), math.log10(4.0), 97, dtype=torch.float64)
_TOP_P = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.95, 0.97, 0.98, 0.99)
_TOP_K = (5, 10, 20, 32, 40, 50, 64, 100, 128, 200, 256)
_MIN_P = (0.01, 0.02, 0.05, 0.1, 0.2)
_EARLY = 3.0  # times the size of later tokens
Side = Literal["rollout", "trainer"]


@dataclass(frozen=True)
class Trial:
    """A cause, and by how much the recorded numbers differ once it is repeated."""

    kind: CauseKind
    text: str
    apart: Tensor
    tokens: Tensor | None = None  # indices, if only some were tried

    def rounding(self, noise: Tensor) -> float:
        return size(noise if self.tokens is None else noise[self.tokens])


@dataclass(frozen=True)
class Evidence:
    """Recorded log-probabilities of one side, and what is known of them."""

    side: Side
    recorded: Tensor
    scorer: Scorer
    noise: Tensor  # of the precision that this side should have
    sizes: dict[str, float]  # of rounding, by dtype
    previous: Scorer | None = None

    @property
    def apart(self) -> Tensor:
        return self.recorded - self.scorer.exact


def find_cause(evidence: Evidence) -> Cause | None:
    """Return what rounding cannot explain, or None."""
    before, rounding = size(evidence.apart), size(evidence.noise)
    if before <= ROUNDING * rounding:
        return None
    kind: CauseKind
    dtype = nearest_dtype(before, evidence.sizes)
    if before <= ROUNDING * evidence.sizes[dtype]:
        kind, text, after = "other dtype", f"they are rounded as in {dtype}", evidence.sizes[dtype]
        return _cause(evidence, kind, text, before, after, rounding)
    trials = [trial for make in _TRIALS for trial in make(evidence)]
    good = [one for one in trials if size(one.apart) <= ROUNDING * one.rounding(evidence.noise)]
    if good:
        best = min(good, key=lambda one: size(one.apart))
        return _cause(evidence, best.kind, best.text, before, size(best.apart), rounding)
    kind, text = _pattern(evidence)
    return _cause(evidence, kind, text, before, math.nan, rounding)


def nearest_dtype(found: float, sizes: dict[str, float]) -> str:
    """Return the dtype whose rounding is nearest to a size."""
    return min(sizes, key=lambda name: abs(math.log(max(found, 1e-12) / max(sizes[name], 1e-12))))


def _cause(
    evidence: Evidence, kind: CauseKind, text: str, before: float, after: float, rounding: float
) -> Cause:
    shown = (
        ""
        if math.isnan(after)
        else (f"; if this is reproduced, a difference of {after:.2g} remains")
    )
    sentence = (
        f"The {evidence.side}'s log-probabilities differ by {before:.2g} from the model in FP32, "
        f"but rounding explains only {rounding:.2g}: {text}{shown}."
    )
    facts = {"before": before, "after": after, "rounding": rounding}
    return Cause(kind=kind, side=evidence.side, sentence=sentence, **facts)


def _sampling(evidence: Evidence) -> Iterator[Trial]:
    """Yield another temperature, and distributions that were cut before they were drawn from."""
    chosen, ids, logits = evidence.scorer.sample_logits()
    recorded, declared = evidence.recorded[chosen], evidence.scorer.temperature

    def apart(temperature: float) -> Tensor:
        return recorded - logprobs(logits, ids, temperature)

    best = min(map(float, _TEMPERATURES * declared), key=lambda one: size(apart(one)))
    for step in (0.005, 0.0005):
        near = [best * (1 + step * k) for k in range(-6, 7)]
        best = min(near, key=lambda one: size(apart(one)))
    text = f"they were computed at temperature {best:.3g} instead of {declared:.3g}"
    yield Trial("temperature", text, apart(best), chosen)
    own = logprobs(logits, ids, declared)
    probs, order = (logits / declared).softmax(-1).sort(-1, descending=True)
    rank = (order == ids[:, None]).double().argmax(-1)
    for name, mass in _cuts(probs, (own - recorded).exp()):
        inside = probs.cumsum(-1).gather(-1, rank[:, None])[:, 0]
        cut = torch.maximum(mass, inside)  # what was drawn was not cut off
        text = (
            f"they belong to a distribution truncated by {name}, but the trainer uses the full "
            "distribution"
        )
        yield Trial("truncated sampling", text, recorded - (own - cut.log()), chosen)


def _cuts(probs: Tensor, implied: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the probability that is left after each cut; ``implied`` is that of the recorded numbers."""
    sums = probs.cumsum(-1)
    for p in (*_TOP_P, float(implied.min().clamp(0.01, 1.0))):
        last = (sums < p).sum(-1, keepdim=True).clamp(max=probs.shape[-1] - 1)
        yield f"top_p={p:.3g}", sums.gather(-1, last)[:, 0]
    for k in _TOP_K:
        if k < probs.shape[-1]:
            yield f"top_k={k}", sums[:, k - 1]
    for p in _MIN_P:
        yield f"min_p={p:.3g}", torch.where(probs >= p * probs[:, :1], probs, 0.0).sum(-1)


def _shifts(evidence: Evidence) -> Iterator[Trial]:
    lengths = [len(row.completion) for row in evidence.scorer.rows]
    pairs = list(
        zip(
            torch.split(evidence.recorded, lengths),
            torch.split(evidence.scorer.exact, lengths),
            strict=True,
        )
    )
    early = torch.cat([recorded[:-1] - exact[1:] for recorded, exact in pairs])
    late = torch.cat([recorded[1:] - exact[:-1] for recorded, exact in pairs])
    for apart, where in ((early, "next"), (late, "previous")):
        if len(apart):
            yield Trial("shifted tokens", f"each value belongs to the {where} token", apart)


def _prompts(evidence: Evidence) -> Iterator[Trial]:
    """Yield prompts without their first token, and with two of it: what templates do to BOS."""
    changes: tuple[tuple[str, Callable[[tuple[int, ...]], tuple[int, ...]]], ...] = (
        ("without its first token", lambda ids: ids[1:] or ids),
        ("with its first token twice", lambda ids: (ids[0], *ids)),
    )
    for how, change in changes:
        apart = evidence.recorded - evidence.scorer.given(change).exact
        yield Trial("other prompt", f"they were computed for the prompt {how}", apart)


def _weights(evidence: Evidence) -> Iterator[Trial]:
    if evidence.previous is not None:
        apart = evidence.recorded - evidence.previous.exact
        yield Trial("other weights", "they were computed with the previous weights", apart)
    model: Any = evidence.scorer.model
    layers = [one for one in model.modules() if isinstance(getattr(one, "scaling", None), dict)]
    for factor, text in ((0.0, "without the adapter"), (2.0, "with the adapter added twice")):
        if layers:
            with _scaled(layers, factor):
                apart = evidence.recorded - evidence.scorer.score(Variant())
            yield Trial("adapter", f"they were computed {text}", apart)


@contextmanager
def _scaled(layers: list[Any], factor: float) -> Iterator[None]:
    """Multiply what the adapters of peft add."""
    before = [dict(layer.scaling) for layer in layers]
    for layer in layers:
        layer.scaling = {name: factor * value for name, value in layer.scaling.items()}
    try:
        yield
    finally:
        for layer, scaling in zip(layers, before, strict=True):
            layer.scaling = scaling


_TRIALS = (_sampling, _shifts, _prompts, _weights)


def _pattern(evidence: Evidence) -> tuple[CauseKind, str]:
    """Return what a difference looks like that no trial has explained."""
    scorer, before = evidence.scorer, size(evidence.apart)
    if _has_dropout(scorer.model):
        random = size(scorer.score(Variant(), train=True) - scorer.exact)
        if 1 / ROUNDING <= before / random <= ROUNDING:
            return "dropout", (
                "dropout causes a difference of this size; call model.eval() before they are "
                "computed"
            )
    lengths = [len(row.completion) for row in scorer.rows]
    parts = [part for part in torch.split(evidence.apart, lengths) if len(part) >= 8]
    if parts:
        early = size(torch.cat([part[: len(part) // 4] for part in parts]))
        late = size(torch.cat([part[-(len(part) // 4) :] for part in parts]))
        if early > _EARLY * late:
            text = (
                "the difference is large after the prompt and then decreases, so the prompt or "
                "its template was different"
            )
            return "other prompt", text
    text = "weights or code differ; pass the previous weights to check whether they are stale"
    return "unknown", text


def _has_dropout(model: nn.Module) -> bool:
    rates = [getattr(one, "p", 0.0) for one in model.modules() if isinstance(one, nn.Dropout)]
    config = getattr(model, "config", None)
    rates.append(getattr(config, "attention_dropout", 0.0) or 0.0)
    return any(rate > 0 for rate in rates)
