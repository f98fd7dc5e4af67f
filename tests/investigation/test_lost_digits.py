"""A line that loses digits is named, if the script also learns less than in FP32."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from benchmarks.digits.cases_of import SCRIPTS, Case, cases
from torch import Tensor, nn

from halfguard.investigation import lost_digits
from halfguard.investigation.bus import HookBus
from halfguard.investigation.inspecting import choose_passes, choose_taped
from halfguard.investigation.lost_digits import LostDigits
from halfguard.investigation.passes import Made, Misused, PassResult
from halfguard.records.rounding import LineInFloat
from halfguard.tracing.called_modules import CalledModules
from tests.investigation.command import answer_of

pytestmark = pytest.mark.usefixtures("seed")


@pytest.fixture
def detector(bus: HookBus) -> Iterator[LostDigits]:
    one = LostDigits(bus, CalledModules(), train.__code__)
    bus.listen(one)
    yield one
    one.end()


def train(loss_of: Callable[[nn.Module, Tensor], Tensor], detector: LostDigits) -> list[Misused]:
    """Train a few steps, the last of them on tape, and return what was found."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(3):
        if step == 1:
            detector.look_for()
        x = 30000 + 30 * torch.randn(32, 8)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_of(model, x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return list(detector.found(Made(), ""))


def rounded(model: nn.Module, x: Tensor) -> Tensor:
    x = x.half()
    steps = (x - x[:, :1]) / 30
    out: Tensor = model(steps)
    return out.float().square().mean()


def healthy(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model((x - 30000) / 30)
    return out.float().square().mean()


def test_the_line_of_a_step_is_named(detector: LostDigits) -> None:
    (found,) = train(rounded, detector)
    line = rounded.__code__.co_firstlineno + 1
    assert found.place == (__file__, line)
    assert found.unsure
    assert f"16-bit rounding at {__file__}:{line} (x = x.half())" in found.sentence


def test_a_healthy_step_is_not_accused(detector: LostDigits) -> None:
    assert train(healthy, detector) == []


def test_a_step_that_is_too_large_is_not_kept(
    detector: LostDigits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_digits, "MAX_BYTES", 1000)
    assert train(rounded, detector) == []


def test_the_taped_step_is_none_of_the_audited_ones() -> None:
    passes = choose_passes(PassResult(backward=400, seconds=1))
    assert choose_taped(passes) == 201
    assert choose_taped((0, 1, 2)) is None


@pytest.mark.slow
@pytest.mark.parametrize("case", list(cases(SCRIPTS)), ids=lambda case: case.name)
def test_why_names_the_line_of_a_silent_script(case: Case, tmp_path: Path) -> None:
    shutil.copy(case.file, tmp_path)
    answer = answer_of(case.file.name, cwd=tmp_path)
    told = answer.advice if answer.cure is None else answer.cure.sentence
    assert (answer.outcome, answer.code) == ("trains wrongly", "HG619")
    assert f"16-bit rounding at {case.file.name}:{case.guilty} " in told


def test_a_line_that_costs_next_to_nothing_is_not_blamed(detector: LostDigits) -> None:
    line = LineInFloat(
        place="train.py:3", code="y", by="gradient", cost=3.0, must=1.0, before=2.8, after=2.79
    )
    detector._found = (line,)
    assert not list(detector.found(Made(), ""))
    detector._found = (line.model_copy(update={"after": 1.4}),)
    assert [one.place for one in detector.found(Made(), "")] == [("train.py", 3)]
