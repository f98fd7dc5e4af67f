"""Pairing and verdict: seeds, lengths, broken runs, and the question that is asked."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from halfguard.comparison.compare import CompareOptions, LoggedComparison, compare
from halfguard.comparison.logged_run import At
from halfguard.errors import UsageError
from halfguard.records.study import Comparison, VerdictLabel
from tests.comparison.logs import BASE, write_csv, write_fp32_and_fp16, write_group


def run(*places: object, metric: str = "val_loss", **options: Any) -> LoggedComparison:
    return compare([str(place) for place in places], CompareOptions(metric, **options))[0]


def only(result: LoggedComparison) -> Comparison:
    (comparison,) = result.verdict.comparisons
    return comparison


@pytest.mark.parametrize(
    ("worse_by", "label"),
    [(0.0, VerdictLabel.PASS), (0.015, VerdictLabel.MARGINAL), (0.12, VerdictLabel.FAIL)],
)
def test_the_loss_decides(tmp_path: Path, worse_by: float, label: VerdictLabel) -> None:
    result = run(*write_fp32_and_fp16(tmp_path, worse_by))
    assert only(result).word is label
    assert only(result).loss == pytest.approx(worse_by, abs=1e-4)
    assert only(result).seeds == (0, 1, 2, 3, 4)
    assert result.verdict.exit_code == (0 if label is VerdictLabel.PASS else 1)


def test_the_direction_turns_a_loss_into_a_gain(tmp_path: Path) -> None:
    places = write_fp32_and_fp16(tmp_path, 0.12)
    assert only(run(*places, higher_is_better=True)).word is VerdictLabel.PASS


def test_several_candidates_are_judged_together(tmp_path: Path) -> None:
    fp32, fp16 = write_fp32_and_fp16(tmp_path, 0.12)
    write_group(tmp_path / "bf16", [1.0001 * value for value in BASE])
    verdict = run(fp32, fp16, tmp_path / "bf16").verdict
    assert [(c.candidate, c.word) for c in verdict.comparisons] == [
        ("fp16", VerdictLabel.FAIL),
        ("bf16", VerdictLabel.PASS),
    ]
    assert verdict.word is VerdictLabel.FAIL


def test_one_run_each_proves_nothing(tmp_path: Path) -> None:
    write_csv(tmp_path / "fp32", [1.0])
    write_csv(tmp_path / "fp16", [1.0])
    result = run(tmp_path / "fp32", tmp_path / "fp16")
    assert only(result).word is VerdictLabel.INCONCLUSIVE
    assert only(result).reason.startswith("No run has a seed")
    assert [one.value for one in result.runs] == [1.0, 1.0]


def test_seeds_of_one_side_alone_are_not_used_and_named(tmp_path: Path) -> None:
    fp32, fp16 = write_fp32_and_fp16(tmp_path, 0.0)
    write_csv(Path(fp16) / "more", [9.0, 9.0], hparams={"seed": 77})
    result = run(fp32, fp16)
    assert only(result).word is VerdictLabel.PASS
    assert "fp16: seed 77 has no pair and is not used." in result.verdict.notes
    assert [one.paired for one in result.runs if one.seed == 77] == [False]


def test_runs_that_share_no_seed(tmp_path: Path) -> None:
    for seed, group in ((1, "fp32"), (2, "fp16")):
        write_csv(tmp_path / group / f"seed{seed}", [1.0])
    result = run(tmp_path / "fp32", tmp_path / "fp16")
    assert only(result).word is VerdictLabel.INCONCLUSIVE
    assert only(result).reason.startswith("There is no pair of runs")
    assert "fp32: seed 1 has no pair and is not used." in result.verdict.notes


def test_a_run_that_ends_in_nan_fails_whatever_the_others_say(tmp_path: Path) -> None:
    fp32, fp16 = write_fp32_and_fp16(tmp_path, 0.0)
    shutil.rmtree(Path(fp16) / "version_3")
    write_csv(Path(fp16) / "version_3", [2.0, math.nan], hparams={"seed": 3})
    for at in At:
        found = only(run(fp32, fp16, at=at))
        assert found.word is VerdictLabel.FAIL
        assert found.broken == (3,)
    assert (
        found.reason
        == "1 of 5 runs failed although fp32 finished with the same seed (seed 3: val_loss is nan)."
    )


def test_a_nan_that_was_overcome_is_a_note(tmp_path: Path) -> None:
    fp32, fp16 = write_fp32_and_fp16(tmp_path, 0.0)
    shutil.rmtree(Path(fp16) / "version_3")
    write_csv(Path(fp16) / "version_3", [math.nan, BASE[3]], hparams={"seed": 3})
    result = run(fp32, fp16)
    assert only(result).word is VerdictLabel.PASS
    assert any("val_loss was not finite in 1 of 2 values" in note for note in result.verdict.notes)


def test_a_run_without_the_metric_is_broken(tmp_path: Path) -> None:
    fp32, fp16 = write_fp32_and_fp16(tmp_path, 0.0)
    shutil.rmtree(Path(fp16) / "version_3")
    write_csv(Path(fp16) / "version_3", [2.0], hparams={"seed": 3}, metric="other")
    found = only(run(fp32, fp16))
    assert found.word is VerdictLabel.FAIL
    assert "val_loss was not logged" in found.reason


def test_a_run_without_anything_is_left_out_and_named(tmp_path: Path) -> None:
    fp32, fp16 = write_fp32_and_fp16(tmp_path, 0.0)
    write_csv(Path(fp16) / "version_9", [])
    result = run(fp32, fp16)
    assert only(result).word is VerdictLabel.PASS
    assert any("no values were logged in" in note for note in result.verdict.notes)


def test_pairs_of_different_length_are_refused_with_a_way_out(tmp_path: Path) -> None:
    fp32, fp16 = write_fp32_and_fp16(tmp_path, 0.0)
    shutil.rmtree(Path(fp16) / "version_2")
    write_csv(Path(fp16) / "version_2", [2.25], hparams={"seed": 2})
    with pytest.raises(UsageError, match=r"different steps \(seed 2: fp32 20, fp16 10") as refused:
        run(fp32, fp16)
    assert "--any-length" in refused.value.cure
    assert only(run(fp32, fp16, any_length=True)).losses[2] == pytest.approx(1.35 / 1.006)


def test_which_value_is_compared(tmp_path: Path) -> None:
    for group in ("fp32", "fp16"):
        for seed in range(3):
            values = [3.0, 0.5 + seed, *[2.0] * 6, 1.0, 1.5]
            write_csv(tmp_path / group / f"seed{seed}", values)
    places = tmp_path / "fp32", tmp_path / "fp16"
    taken = {at: [one.value for one in run(*places, at=at).runs[:3]] for at in At}
    assert taken == {At.LAST: [1.5] * 3, At.BEST: [0.5, 1.0, 1.0], At.TAIL: [1.25] * 3}


def test_two_runs_with_one_seed_are_refused(tmp_path: Path) -> None:
    fp32, fp16 = write_fp32_and_fp16(tmp_path, 0.0)
    write_csv(Path(fp16) / "again", [2.0, 1.0], hparams={"seed": 3})
    with pytest.raises(UsageError, match=r"fp16 has two runs with seed 3: .*again and .*version_3"):
        run(fp32, fp16)


def test_a_run_without_a_seed_among_others_is_refused(tmp_path: Path) -> None:
    fp32, fp16 = write_fp32_and_fp16(tmp_path, 0.0)
    write_csv(Path(fp16) / "stray", [2.0, math.nan])
    with pytest.raises(UsageError, match=r"1 of 11 runs have no seed: .*stray"):
        run(fp32, fp16)


def test_a_comparison_is_a_record(tmp_path: Path) -> None:
    result = run(*write_fp32_and_fp16(tmp_path, 0.0))
    assert LoggedComparison.from_json(result.to_json()) == result


@pytest.mark.parametrize("count", [1, 2])
def test_two_different_places_are_needed(tmp_path: Path, count: int) -> None:
    fp32, _ = write_fp32_and_fp16(tmp_path, 0.0)
    with pytest.raises(UsageError, match="two or more different paths"):
        run(*[fp32] * count)
