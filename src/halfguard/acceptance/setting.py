"""What every check gets: the device, the size of its runs, and a folder for files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from halfguard.records.acceptance import AcceptanceCase

Cases = Iterable[AcceptanceCase]


class NotRunError(Exception):
    """The check cannot run on this device or machine; the text says why."""


@dataclass(frozen=True)
class Size:
    """How much is run. Both sizes run the same code."""

    steps: int  # of a training run that is compared bit by bit
    every_combination: (
        bool  # of models, optimizers and faults; otherwise a sample that has each of them
    )
    rounds: int  # of interleaved timing
    width: int  # of the model that is timed on a CPU; on an accelerator it is four times as wide
    kernel_batch: int | None  # batch size of the self-test; None: its default


FULL = Size(steps=24, every_combination=True, rounds=15, width=256, kernel_batch=None)
SMALL = Size(steps=9, every_combination=False, rounds=3, width=64, kernel_batch=1)


@dataclass(frozen=True)
class Setting:
    """The device under test."""

    device: torch.device
    size: Size
    folder: Path

    @property
    def module(self) -> Any:
        """torch.cuda, or the module of another device type."""
        return torch.get_device_module(self.device)


def wait_for(device: torch.device) -> None:
    """Wait for the work of a device, so that no copy is under way when its target is freed."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
