"""Changes of one line, judged against FP32 as written and float64 of what is meant."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from halfguard.records.autopsy import Culprit, ReplayTrial
from halfguard.replaying import cures
from halfguard.replaying.judgement import Judge, error_class
from halfguard.replaying.replayed_step import ReplayedStep
from halfguard.replaying.trials import Trials
from halfguard.workload import Workload
from tests.replaying.helper import broken, edited, job, overflowing

pytestmark = pytest.mark.usefixtures("seed")


def loss(model: nn.Module, x: Tensor) -> Tensor:
    margin = model(x)
    chance = torch.sigmoid(margin)
    return -torch.log(chance + 1e-8).mean()


def judged(value: float, folder: Path) -> tuple[list[ReplayTrial | None], Judge]:
    """Return ops.log, the line and the function in FP32, and logsigmoid, for one margin in all samples."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    workload = Workload(model, loss, [], torch.optim.SGD(model.parameters(), lr=0.0))
    incident = broken(folder, [torch.full((8, 1), 100 * value)], workload)
    step = ReplayedStep(edited(incident, folder, device="cuda"), workload)
    step.batches = [torch.full((8, 1), value)]
    trials = Trials(step)
    line = inspect.getsourcelines(loss)[1] + 3
    culprit = Culprit("op", "log", "forward", None, __file__, line, "")
    found = (
        cures.stable_operations(trials, culprit),
        cures.statements(trials, culprit, whole_function=False),
        cures.statements(trials, culprit, whole_function=True),
        cures.rewritten(trials, culprit),
    )
    return [next((one.trial for one in made), None) for made in found], trials.judge


@pytest.mark.parametrize(
    ("value", "as_written", "saturation"),
    [(-14.0, 0.012, 0.012), (-16.5, 0.15, 0.13), (-20.0, 4.9, 0.83), (-25.0, 720, 0.999)],
)
def test_the_two_references_of_a_log_of_a_sigmoid(
    value: float, as_written: float, saturation: float, tmp_path: Path
) -> None:
    (capped, line, function, rewritten), judge = judged(value, tmp_path)
    assert judge.saturation == pytest.approx(saturation, rel=0.05)
    assert rewritten is not None
    assert rewritten.error_as_meant == pytest.approx(0, abs=1e-3)
    assert rewritten.error_as_written == pytest.approx(as_written, rel=0.05)
    assert function is not None
    assert function.error_as_written == pytest.approx(0, abs=1e-3)
    assert function.error_as_meant == pytest.approx(saturation, rel=0.05)
    assert line is not None
    assert not line.good
    assert capped is not None
    assert not capped.good or error_class(capped) > error_class(rewritten)
    assert judge.is_sound(rewritten)
    assert not judge.is_sound(capped)


def test_a_large_gradient_cannot_have_a_large_scale(tmp_path: Path) -> None:
    """The step of this incident has gradients of 1e5: its island is sound at scale 16."""
    judge = Trials(ReplayedStep(broken(tmp_path, [overflowing()]), job())).judge
    assert judge.expected_scale == 1
    trial = ReplayTrial(name="", good=True, error_as_written=0.0, largest_scale=16.0)
    assert judge.is_sound(trial)
    assert judge.scale_class(trial) == 0


def test_errors_up_to_rounding_are_equal() -> None:
    def of(error: float | None) -> int:
        return error_class(ReplayTrial(name="", good=True, error_as_written=error))

    assert [of(e) for e in (0.0, 0.02, 0.03, 0.05, 0.5, None)] == [0, 0, 1, 2, 5, 2]
