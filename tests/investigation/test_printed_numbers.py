"""What a script prints of its own metric decides whether a patch is worth anything."""

from __future__ import annotations

import pytest

from halfguard.investigation.printed_numbers import compare_last, farther, is_as_good, last_numbers


def test_the_last_number_after_each_word_is_read() -> None:
    printed = "epoch 0 loss 0.9 val_mse: 3e-1\nepoch 1 loss=0.5 val_mse: nan 12.5 s\n"
    found = last_numbers(printed)
    assert found["loss"] == 0.5
    assert str(found["val_mse"]) == "nan"


def test_frameworks_print_dictionaries() -> None:
    found = last_numbers("{'eval_loss': 0.25, 'eval_runtime': 1.5, 'eval_steps_per_second': 40}")
    assert found == {"eval_loss": 0.25}


@pytest.mark.parametrize(
    ("before", "now", "full", "is_farther"),
    [
        (0.6, 1.0, 0.01, True),  # the validation loop still has the fault
        (0.6, 0.3, 0.01, False),
        (0.5, 0.55, 0.51, False),  # noise
        (0.6, float("nan"), 0.01, True),
        (float("nan"), 0.3, 0.1, False),
    ],
)
def test_a_metric_that_gets_worse_refutes_a_patch(
    before: float, now: float, full: float, is_farther: bool
) -> None:
    texts = (f"loss 1.0 val_mse {number}" for number in (before, now, full))
    assert bool(farther(*texts)) is is_farther


@pytest.mark.parametrize(
    ("now", "is_good"),
    [("acc 0.9 mse 0.1", True), ("acc 0.7 mse 0.1", False), ("acc nan mse 0.1", False),
     ("acc 0.9", False), ("loss 0.1 steps 40", False)],
)  # fmt: skip
def test_a_run_with_the_metrics_of_fp32_is_as_good(now: str, is_good: bool) -> None:
    assert is_as_good(now, "acc 0.9 mse 0.1 loss 3.5") is is_good


def test_a_loss_alone_is_no_metric() -> None:
    assert not is_as_good("loss 0.1", "loss 0.1")


def test_runs_that_print_nothing_are_not_compared() -> None:
    assert farther("", "done", "") == compare_last("done", "") == ""
    assert compare_last("acc 0.5", "acc 0.75") == "printed acc: 0.5 (FP32: 0.75)"


def test_what_a_scaler_did_is_no_result() -> None:
    printed = (
        "steps skipped while the scale settled: 8\noverflows 3 loss_scale 1024 scale 64 mse 0.5"
    )
    assert last_numbers(printed) == {"mse": 0.5}
    assert last_numbers("multi-scale mse 0.5")
