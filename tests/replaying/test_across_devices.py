"""An incident that was captured on an accelerator is repeated on a machine that has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.models.zoo.base import noise

from halfguard.incident import open_incident
from halfguard.replaying.autopsy import replay
from halfguard.workload import Workload
from tests.replaying.helper import broken, build, job, mean, overflowing
from tests.support.devices import place


@pytest.mark.parametrize("fused", [False, True], ids=["at once", "late"])
def test_it_is_repeated_bit_for_bit_on_a_cpu(accelerator: Any, tmp_path: Path, fused: bool) -> None:
    model = place(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    there = Workload(model, mean, [], optimizer)
    healthy = place(noise(0, 6, 4))
    incident = broken(tmp_path, [place(overflowing()), *[healthy] * (2 if fused else 0)], there)
    assert incident.record.device == "standin"
    accelerator.set_available(False)
    autopsy = replay(open_incident(incident.folder), job())
    # Decided late, the weights that it holds are those of a later step.
    assert autopsy.reproduced == ("same fault" if fused else "bitwise")
    assert "CUDA's autocast rules, emulated" in autopsy.how
    assert (autopsy.culprit.op, autopsy.culprit.module) == ("mul", "1")
