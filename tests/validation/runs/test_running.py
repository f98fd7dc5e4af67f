"""One run: the loops are the ones they are named after, and whatever happens is told."""

from __future__ import annotations

import errno
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from halfguard.errors import UsageError
from halfguard.precision.emulation import emulate_autocast
from halfguard.records.study import RunResult
from halfguard.validation.runs.pairing import SeededBatches, digest_of, raise_if_unpaired
from halfguard.validation.runs.running import run
from halfguard.validation.runs.task import Task, run_tasks
from halfguard.workload import Workload
from tests.validation import jobs
from tests.validation.helper import numbers, spec_of

ALL = ["fp16-mixed", "fp16-mixed guarded", "bf16-mixed", "fp16-weights"]


def tasks_of(job: str, **keys: Any) -> dict[str, Task]:
    tasks = run_tasks(spec_of(job, **({"candidates": ALL, "seeds": [3]} | keys)))
    return {task.candidate: task for task in tasks}


@pytest.fixture(scope="module")
def healthy() -> dict[str, RunResult]:
    return {name: run(task) for name, task in tasks_of("healthy").items()}


def by_hand(seed: int, steps: int, half: bool) -> tuple[list[float], dict[str, float]]:
    """The loop that a reader of torch's own pages would write, without halfguard's runner."""
    torch.manual_seed(seed)
    work = jobs.healthy(seed)
    stream = SeededBatches(work.take(steps), seed)
    scaler = torch.amp.GradScaler("cpu", enabled=half)
    torch.manual_seed(seed)
    losses = []
    for batch in stream:
        if half:
            with emulate_autocast("cuda"):
                loss = jobs.loss(work.model, batch)
        else:
            loss = jobs.loss(work.model, batch)
        scaler.scale(loss).backward()
        scaler.step(work.optimizer)
        scaler.update()
        work.optimizer.zero_grad()
        losses.append(loss.item())
    work.model.eval()
    with torch.no_grad():
        if half:
            with emulate_autocast("cuda"):
                return losses, jobs.accuracy(work.model)
        return losses, jobs.accuracy(work.model)


@pytest.mark.parametrize(("name", "half"), [("fp32", False), ("fp16-mixed", True)])
def test_a_bare_run_is_bitwise_the_loop_written_by_hand(
    healthy: dict[str, RunResult], name: str, half: bool, seed: Any
) -> None:
    losses, metrics = by_hand(3, 6, half)
    assert list(healthy[name].curve.loss) == losses
    assert healthy[name].metrics == metrics


def test_where_nothing_goes_wrong_the_guard_changes_no_bit(healthy: dict[str, RunResult]) -> None:
    bare, guarded = healthy["fp16-mixed"], healthy["fp16-mixed guarded"]
    assert (bare.metrics, bare.curve.loss) == (guarded.metrics, guarded.curve.loss)


def test_every_candidate_clips_as_the_job_does(healthy: dict[str, RunResult]) -> None:
    tasks = tasks_of("clipped", candidates=["fp16-mixed", "fp16-mixed guarded"])
    runs = {name: run(task) for name, task in tasks.items()}
    bare, guarded = runs["fp16-mixed"], runs["fp16-mixed guarded"]
    assert guarded.curve == bare.curve
    for name in ("fp32", "fp16-mixed"):
        assert runs[name].curve.grad_norm[0] == healthy[name].curve.grad_norm[0]  # before clipping
        assert runs[name].curve.loss[1:] != healthy[name].curve.loss[1:]


def test_precisions_differ_and_are_all_trained(healthy: dict[str, RunResult]) -> None:
    losses = {run.curve.loss for name, run in healthy.items() if name != "fp16-mixed guarded"}
    assert len(losses) == 4
    for result in healthy.values():
        assert (result.steps, result.skipped, result.retried, result.failure) == (6, 0, 0, None)
        assert len(result.curve.steps) == 6
        assert all(norm > 0 for norm in result.curve.grad_norm)
        assert result.environment["torch"] == torch.__version__
        assert result.peak_bytes is not None
    assert set(healthy["fp16-mixed"].curve.scale) == {65536.0}
    assert set(healthy["bf16-mixed"].curve.scale) == {1.0}
    assert set(healthy["fp32"].curve.scale) == {1.0}


def test_seeds_are_paired(healthy: dict[str, RunResult]) -> None:
    assert len({result.initial_weights for result in healthy.values()}) == 1
    assert len({result.batch_order for result in healthy.values()}) == 1
    other = run(tasks_of("healthy", seeds=[4])["fp32"])
    assert other.initial_weights != healthy["fp32"].initial_weights
    assert other.batch_order != healthy["fp32"].batch_order


def test_a_run_is_repeatable_bit_for_bit(healthy: dict[str, RunResult]) -> None:
    for name, task in tasks_of("healthy").items():
        assert numbers(run(task)) == numbers(healthy[name])


def test_bare_fp16_loses_every_step_that_the_guard_saves() -> None:
    tasks = tasks_of("overflowing", steps=12)
    bare, guarded, base = (run(tasks[n]) for n in ("fp16-mixed", "fp16-mixed guarded", "fp32"))
    assert bare.skipped == 12
    assert math.isinf(bare.curve.loss[-1]) or math.isnan(bare.curve.loss[-1])
    assert (guarded.skipped, guarded.retried) == (0, 12)
    # Every step was repeated in FP32, so this is the FP32 run.
    assert guarded.metrics["loss"] == pytest.approx(base.metrics["loss"], rel=1e-3)
    assert bare.metrics["loss"] != pytest.approx(base.metrics["loss"], rel=1e-3)


def test_what_the_model_raises_is_told_with_its_line() -> None:
    result = run(tasks_of("raising")["fp16-mixed"])
    assert result.failure is not None
    assert "RuntimeError: no kernel for half (in only_fp32, at " in result.failure
    assert (result.metrics, result.steps, result.batch_order) == ({}, 0, None)
    assert run(tasks_of("raising")["fp32"]).failure is None


def test_a_script_that_ends_itself_has_failed() -> None:
    result = run(tasks_of("giving_up")["fp16-mixed"])
    assert result.failure.startswith("SystemExit: Loss is not finite, stopping training (in strict")
    assert not result.lost  # it is the candidate's failure, not the machine's
    assert run(tasks_of("giving_up")["fp32"]).failure is None


def test_a_full_disk_is_not_the_candidates_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Tensor:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Workload, "loss_of", full)
    with pytest.raises(OSError, match="No space left"):
        run(tasks_of("healthy")["fp16-mixed"])


def test_a_guard_that_halts_is_a_failure_and_not_an_end() -> None:
    guard = {"skip": {"on_nonfinite": "raise"}}
    arm = {"name": "strict", "precision": "fp16-mixed", "guard": guard}
    result = run(tasks_of("overflowing", candidates=[arm])["strict"])
    assert result.failure.startswith("halted: ")


def test_a_wrong_metric_is_the_users_mistake() -> None:
    metric = {"name": "acuracy", "higher_is_better": True}
    with pytest.raises(UsageError, match=r"'acuracy'; it has 'accuracy', 'loss'"):
        run(tasks_of("healthy", metric=metric)["fp32"])


def test_evaluation_in_fp32_judges_the_weights_alone() -> None:
    trained = tasks_of("healthy", steps=1)["fp16-mixed"]
    judged = tasks_of("healthy", steps=1, evaluation="fp32")["fp16-mixed"]
    in_half, in_full = run(trained), run(judged)
    assert in_half.curve == in_full.curve
    assert in_half.metrics["loss"] != in_full.metrics["loss"]
    weights = tasks_of("healthy", steps=1, evaluation="fp32")["fp16-weights"]
    assert run(weights).failure is None


def test_without_evaluate_the_last_losses_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = {"name": "loss", "higher_is_better": False}
    task = tasks_of("not_evaluated", metric=metric, steps=10)["fp32"]
    result = run(task)
    assert result.metrics == {"loss": sum(result.curve.loss[-2:]) / 2}


def augmented() -> Iterator[tuple[Tensor, float, float]]:
    for _ in range(4):
        yield torch.randn(3), random.random(), np.random.random()


def test_batches_do_not_depend_on_what_the_model_draws(seed: Any) -> None:
    before = np.random.get_state()
    digests = set()
    for draws in (0, 1, 5):
        stream = SeededBatches(augmented(), seed=1)
        for _ in stream:
            torch.randn(draws)
            random.random()
        digests.add(stream.digest())
    assert len(digests) == 1
    assert before[1].tolist() == np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]


def test_a_digest_sees_order_bits_and_dtype() -> None:
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    zero, minus = torch.tensor([0.0]), torch.tensor([-0.0])
    trees = [[one], [two], [one, two], [two, one], {"a": one}, [one.half()], [zero], [minus], ["x"]]
    assert len({digest_of(tree) for tree in trees}) == len(trees)
    assert digest_of([one]) == digest_of([one.clone()])
    assert digest_of(torch.eye(2).to_sparse()) == digest_of(torch.eye(2).to_sparse())


def test_runs_that_are_no_pair_are_refused() -> None:
    tasks = tasks_of("unpaired")
    runs = [run(tasks["fp32"]), run(tasks["fp16-mixed"])]
    with pytest.raises(UsageError, match="seed 3, fp16-mixed and fp32 have different weights"):
        raise_if_unpaired(runs, "fp32")
    raise_if_unpaired(runs[:1], "fp32")
