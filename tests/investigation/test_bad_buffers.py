"""Half buffers that are not finite at the end of a run, and those that are meant to be."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from halfguard.investigation.bus import HookBus
from halfguard.investigation.made_places import MadePlaces
from halfguard.investigation.passes import Misused
from tests.repairs.patched_script import first_pass

HERE = Path(__file__)


class Tracker(nn.Module):
    """Holds one buffer, and adds what it is given."""

    total: Tensor

    def __init__(self, first: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("total", first)

    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total + x.detach().sum()
        return self.weight * x


@pytest.fixture
def places(bus: HookBus) -> MadePlaces:
    """Return what listens to modules and casts, for the time of a test."""
    made = MadePlaces(first_pass(HERE))
    bus.listen(made)
    return made


def found(places: MadePlaces, module: nn.Module) -> tuple[Misused, ...]:
    """Return what is told of a run that trains the module."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return tuple(places.bad_buffers(places.facts(optimizer)))


def line_of(text: str) -> int:
    lines = HERE.read_text("utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(text))


def test_a_sum_that_overflows_is_told_with_the_line_of_the_cast(places: MadePlaces) -> None:
    module = Tracker(torch.zeros(1))
    module = module.half()  # becomes half
    for _ in range(3):
        module(torch.full((4,), 8000.0, dtype=torch.float16))
    (told,) = found(places, module)
    assert (told.kind, told.dtype) == ("bad buffer", "float16")
    assert told.place == (str(HERE), line_of("# becomes half"))
    assert "total of Tracker is 16-bit" in told.sentence


def test_a_buffer_that_overflows_in_the_cast_itself_is_told(places: MadePlaces) -> None:
    module = Tracker(torch.full((1,), 1e5)).half()
    assert found(places, module)


def test_a_nan_in_bfloat16_is_told_by_its_dtype(places: MadePlaces) -> None:
    module = Tracker(torch.zeros(1)).to(torch.bfloat16)
    module(torch.tensor([math.inf, -math.inf], dtype=torch.bfloat16))
    assert found(places, module)[0].dtype == "bfloat16"


@pytest.mark.parametrize(
    "first",
    [
        torch.full((4, 4), -math.inf).triu(1),  # a mask
        torch.tensor([math.inf]),  # a minimum before its first batch
        torch.tensor([math.nan]),  # not known yet
        torch.tensor([60000.0]),  # it fits
        torch.tensor([2**20]),  # a count
        torch.zeros(0),
    ],
)
def test_a_buffer_that_is_meant_to_be_so_is_not_told(places: MadePlaces, first: Tensor) -> None:
    module = Tracker(first).half()
    assert found(places, module) == ()


def test_an_fp32_buffer_is_not_told(places: MadePlaces) -> None:
    module = Tracker(torch.tensor([math.inf]))
    module.weight.data = module.weight.data.half()
    assert found(places, module) == ()


def test_buffers_without_numbers_are_passed_over(places: MadePlaces) -> None:
    empty = Tracker(torch.full((1,), math.inf, device="meta")).half()
    lazy = nn.LazyBatchNorm1d().half()
    assert empty.total.is_meta
    assert lazy.running_mean is not None
    assert found(places, Tracker(torch.zeros(1))) == ()


def test_what_is_known_of_an_object_that_is_gone_is_not_said_of_another_one(
    places: MadePlaces,
) -> None:
    """A new object sooner or later has the identity of a deleted one."""
    weight, known, reused = nn.Parameter(torch.ones(1)), set[int](), False
    for number in range(1000):
        if reused:
            break
        made: torch.optim.Optimizer = torch.optim.SGD([weight], lr=0.1)
        reused = id(made) in known
        known.add(id(made))
        bad = Tracker(torch.full((1,), math.inf))
        places.note_buffers()  # bad on purpose
        del made, bad
        module = Tracker(torch.zeros(1)).half()
        module.total.fill_(math.inf)
        assert found(places, module), number
        del module
    assert reused


def test_the_line_of_weights_that_were_made_in_half_outlives_their_module(
    places: MadePlaces,
) -> None:
    module = Tracker(torch.zeros(1))
    module.weight = nn.Parameter(torch.ones(1, dtype=torch.float16))
    weight = module.weight
    places.on_module_made(module)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    places.on_optimizer_made(optimizer)
    del module
    assert places.facts(optimizer).half_weights is not None
