"""An incident that was captured on the device fails again on a CPU, with the same cause."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.models.zoo.base import noise
from torch import Tensor

from halfguard.incident import open_incident
from halfguard.records import Cause
from halfguard.replaying.autopsy import replay
from halfguard.workload import Workload
from tests.replaying.helper import broken, build, job, mean, overflowing
from tests.support.devices import place

BAD = 2  # the sample with NaN
AT_ITS_FLOOR = {"scale": {"init": 2.0**20, "floor": 2.0**20}}  # too large for half, and cannot fall


def with_nan() -> Tensor:
    batch = noise(0, 6, 4)
    batch[BAD] = math.nan
    return batch


FAULTS: dict[str, tuple[Tensor, dict[str, Any], Cause, str]] = {
    "NaN in a sample": (with_nan(), {}, Cause.BAD_BATCH, "forward"),
    "forward overflow": (overflowing(), {}, Cause.FORWARD_OVERFLOW, "forward"),
    "gradient overflow": (noise(0, 6, 4), AT_ITS_FLOOR, Cause.GRADIENT_OVERFLOW, "backward"),
}


@pytest.mark.placed_by_hand  # the replay is on a CPU
@pytest.mark.parametrize("fused", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("fault", FAULTS)
def test_it_fails_again_on_a_cpu(
    fault: str, fused: bool, device: torch.device, tmp_path: Path
) -> None:
    batch, config, cause, phase = FAULTS[fault]
    model = place(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    there = Workload(model, mean, [], optimizer)
    batches = [place(batch), *[place(noise(0, 6, 4))] * (2 if fused else 0)]
    incident = broken(tmp_path, batches, there, config=config)
    assert incident.record.device == device.type
    found = replay(open_incident(incident.folder), job())
    assert found.reproduced != "no"
    assert found.cause is cause
    if cause is Cause.BAD_BATCH:
        assert found.samples == (BAD,)
    assert found.culprit.phase == phase
