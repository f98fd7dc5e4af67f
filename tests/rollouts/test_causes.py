"""A planted cause is named, and rounding alone is none."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from halfguard.records.mismatch import MismatchReport
from halfguard.rollouts import Rollout, mismatch
from halfguard.rollouts.scoring import Scorer, Variant
from tests.rollouts.small_policy import Policy, recorded, rollouts
from tests.support.models import differences

pytestmark = pytest.mark.usefixtures("seed")


def kinds(report: MismatchReport) -> list[str]:
    return [one.kind for one in report.causes]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_rounding_alone_is_no_cause(dtype: str) -> None:
    model = Policy()
    rows = rollouts(model, dtype=getattr(torch, dtype))
    report = mismatch(model, rows, rollout_dtype=dtype, trainer_dtype=dtype, lines=False)
    assert kinds(report) == []
    assert report.rollout_dtype == dtype
    assert report.parts["not rounding"] == 0


def test_a_declared_temperature_is_no_cause_and_another_one_is_found() -> None:
    model = Policy()
    rows = rollouts(model, temperature=0.8)
    assert kinds(mismatch(model, rows, temperature=0.8, lines=False)) == []
    (cause,) = mismatch(model, rows, lines=False).causes
    assert (cause.kind, cause.side) == ("temperature", "rollout")
    assert "at temperature 0.8 instead of 1" in cause.sentence or "0.80" in cause.sentence
    assert cause.after <= 2 * cause.rounding


def test_a_cut_distribution_is_found() -> None:
    model = Policy()
    rows = [_cut(model, row, 10) for row in rollouts(model)]
    (cause,) = mismatch(model, rows, lines=False).causes
    assert cause.kind == "truncated sampling"
    assert "top_k=10" in cause.sentence


@torch.no_grad()
def _cut(model: Policy, row: Rollout, most: int) -> Rollout:
    """Draw the most likely tokens from what is left of the distributions."""
    ids, logprobs = list(row.prompt), []
    for at in range(len(row.completion)):
        logits = model(torch.tensor([ids]))[0, -1]
        best = logits.topk(most)
        drawn = at % most
        logprobs.append(float(best.values.log_softmax(-1)[drawn]))
        ids.append(int(best.indices[drawn]))
    return Rollout(row.prompt, tuple(ids[len(row.prompt) :]), tuple(logprobs))


@pytest.mark.parametrize("late", [False, True])
def test_log_probabilities_of_neighbours_are_found(late: bool) -> None:
    model = Policy()
    rows = [
        replace(r, logprobs=(-1.0, *r.logprobs[:-1]) if late else (*r.logprobs[1:], -1.0))
        for r in rollouts(model)
    ]
    assert kinds(mismatch(model, rows, lines=False)) == ["shifted tokens"]


def test_another_prompt_is_found() -> None:
    model = Policy()
    (cause,) = mismatch(model, rollouts(model, sees=lambda ids: ids[1:]), lines=False).causes
    assert cause.kind == "other prompt"
    assert "without its first token" in cause.sentence
    rows = rollouts(model, sees=lambda ids: (7, 9, 11, *ids[2:]))
    (cause,) = mismatch(model, rows, lines=False).causes
    assert cause.kind in ("other prompt", "unknown")  # a template that was not tried


def test_old_weights_are_found_if_they_are_given() -> None:
    old = Policy()
    model = copy.deepcopy(old)
    with torch.no_grad():
        model.mix.weight.add_(0.1 * torch.randn_like(model.mix.weight))
    rows = rollouts(old)
    report = mismatch(model, rows, previous=old, lines=False)
    assert kinds(report) == ["other weights"]
    assert report.parts["policy change"] > report.parts["rounding of the rollout"]
    assert kinds(mismatch(model, rows, lines=False)) == ["unknown"]


def test_another_dtype_is_found() -> None:
    model = Policy()
    report = mismatch(model, rollouts(model), rollout_dtype="float16", lines=False)
    assert kinds(report) == ["other dtype"]
    assert "rounded as in bfloat16" in report.causes[0].sentence


def test_dropout_of_the_trainer_is_found() -> None:
    model = Policy(dropout=0.1)
    rows = rollouts(model.eval())
    own = Scorer(model, rows).score(Variant(), train=True)
    parts = torch.split(own, [len(row.completion) for row in rows])
    both = [replace(r, trainer=tuple(p.tolist())) for r, p in zip(rows, parts, strict=True)]
    report = mismatch(model, both, lines=False)
    assert [(one.kind, one.side) for one in report.causes] == [("dropout", "trainer")]
    assert report.trainer == "recorded"


def test_an_adapter_that_is_missing_is_found() -> None:
    model = Policy()
    with_adapter: Any = copy.deepcopy(model)
    with_adapter.mix = _Adapted(with_adapter.mix)
    assert kinds(mismatch(with_adapter, rollouts(with_adapter), lines=False)) == []
    (cause,) = mismatch(with_adapter, rollouts(model), lines=False).causes
    assert cause.kind == "adapter"
    assert "without the adapter" in cause.sentence


class _Adapted(torch.nn.Module):
    """A layer with what peft adds to it."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base, self.scaling = base, {"default": 2.0}
        self.low = torch.nn.Linear(64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(x) + self.scaling["default"] * self.low(x)
        return out


def test_nothing_is_left_behind() -> None:
    model = Policy(dropout=0.1).train()
    rows = recorded(model, rollouts(model), dtype=torch.float16)
    before = copy.deepcopy(model.state_dict())
    mismatch(model, rows)
    assert not differences(before, model.state_dict())
    assert all(module.training for module in model.modules())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.slow
def test_a_cache_is_used_where_the_model_has_one() -> None:
    from benchmarks.digits.rollouts import healthy

    report = healthy(0, "bfloat16")
    assert kinds(report) == []
    assert [one.name for one in report.same_precision] == ["bfloat16, decoded", "float16, decoded"]
    assert 0 < report.parts["decoding with a KV cache"] < report.parts["rounding of the trainer"]
    assert report.recommended == "bfloat16"
