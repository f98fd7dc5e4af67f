"""The numbers of a report are those of their definitions; files are read or refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from halfguard.errors import UsageError
from halfguard.numerics.agreement import agreement, by_length, ratio_of_k3
from halfguard.records.mismatch import MismatchReport
from halfguard.report.html import to_html
from halfguard.report.markdown import to_markdown
from halfguard.report.mismatch import mismatch_page
from halfguard.rollouts import mismatch, read_rollouts
from tests.rollouts.small_policy import Policy, rollouts

pytestmark = pytest.mark.usefixtures("seed")


def test_agreement_has_the_numbers_that_trainers_log() -> None:
    rollout = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64)
    trainer = torch.tensor([-1.0, -2.3, -2.8], dtype=torch.float64)
    found = agreement("x", rollout, trainer, 0.1)
    ratio = torch.exp(trainer - rollout)
    assert found.mean == pytest.approx(0.1 / 3)
    assert found.k3 == pytest.approx(float((ratio - 1 - ratio.log()).mean()))
    assert found.chi2 == pytest.approx(float(ratio.square().mean()) - 1)
    assert found.sample == pytest.approx(float(ratio.sum() ** 2 / (3 * ratio.square().sum())))
    assert found.outside == pytest.approx(2 / 3)


def test_tokens_are_counted_by_their_position() -> None:
    positions = torch.arange(100)
    shares = by_length(torch.where(positions < 64, 0.0, 0.5), positions, 0.1)
    assert [(one.first, one.last, one.outside) for one in shares] == [(0, 63, 0.0), (64, 99, 1.0)]


def test_a_ratio_has_an_interval_over_sequences() -> None:
    apart = torch.randn(400, dtype=torch.float64)
    ratio, low, high = ratio_of_k3(0.08 * apart, 0.01 * apart, [40] * 10)
    assert ratio == pytest.approx(64, rel=0.1)
    assert low <= ratio <= high


def test_the_report_can_be_written_and_read() -> None:
    model = Policy()
    report = mismatch(model, rollouts(model))
    assert MismatchReport.from_json(report.to_json()) == report
    assert report.bf16_over_fp16 > 16  # three bits less, squared: 64
    assert report.recommended in ("bfloat16", "bfloat16 with an FP32 head", "float16")
    assert any("small_policy.py" in line for line in report.lines)
    text = to_markdown(mismatch_page(report, "rollouts.jsonl"))
    assert text.startswith("# rollouts.jsonl: rounding explains the mismatch")
    assert "float16 with an FP32 head" in text
    assert "paired" in to_html(mismatch_page(report))


def test_a_file_of_rollouts_is_read(tmp_path: Path) -> None:
    row = {"prompt_ids": [1, 2], "completion_ids": [3, 4], "rollout_logprobs": [-0.5, -1.5]}
    path = tmp_path / "rollouts.jsonl"
    path.write_text(f"{json.dumps(row)}\n\n{json.dumps(row | {'trainer_logprobs': [-0.4, -1]})}\n")
    first, second = read_rollouts(path)
    assert (first.prompt, first.trainer) == ((1, 2), None)
    assert second.trainer == (-0.4, -1.0)
    assert len(read_rollouts(path, 1)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        '{"prompt_ids": [1], "completion_ids": [2]}',
        '{"prompt_ids": [1], "completion_ids": [2], "rollout_logprobs": [-1, -2]}',
        '{"prompt_ids": [1], "completion_ids": [2], "rollout_logprobs": [0.7]}',
        '{"prompt_ids": [1], "completion_ids": [2], "rollout_logprobs": [NaN]}',
        '{"prompt_ids": [], "completion_ids": [2], "rollout_logprobs": [-1]}',
    ],
)
def test_what_is_no_rollout_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(line)
    with pytest.raises(UsageError):
        read_rollouts(path)


def test_a_dtype_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match="'int8' is not"):
        mismatch(Policy(), [], rollout_dtype="int8")
    assert math.isnan(MismatchReport.model_fields["ratio_low"].default)
