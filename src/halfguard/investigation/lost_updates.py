"""Half weights that optimizers write: they are compared before and after a step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import Any

from torch import Tensor

from halfguard.formats import dtype_name
from halfguard.investigation.bus import HookBus
from halfguard.investigation.detectors import OFTEN, Detector
from halfguard.investigation.passes import Made, Misused, Place
from halfguard.precision.modes import HALF_DTYPES
from halfguard.replaying.function_modes import user_place


class LostUpdates(Detector):
    """Elements of half weights that a step of torch's own optimizers leaves as they are."""

    code = "HG402"
    # Of the elements whose gradient is not 0: so many are wrong, so many may be.
    _MOST_LOST, _MANY_LOST = 0.9, 0.5
    _MOST_ELEMENTS = 5_000_000  # of parameters that are copied

    def __init__(self, bus: HookBus) -> None:
        super().__init__(bus)
        self.is_on = False
        # A parameter, a copy, and where it has a gradient.
        self._before: list[tuple[Tensor, Tensor, Tensor]] = []
        self._lost: dict[int, list[tuple[int, int]]] = {}  # of each parameter: lost, and all
        self._place: Place | None = None
        self._dtype = ""

    def on_stepping(self, optimizer: Any) -> None:
        self._before = []
        if not self.is_on or not type(optimizer).__module__.startswith("torch.optim"):
            return
        room = self._MOST_ELEMENTS
        with self.bus.unobserved():
            # A learning rate of 0 freezes a group.
            groups = [g for g in optimizer.param_groups if "lr" not in g or float(g["lr"]) != 0]
            for parameter in (p for group in groups for p in group["params"]):
                room -= parameter.numel()
                if parameter.dtype in HALF_DTYPES and parameter.grad is not None and room > 0:
                    has_gradient = parameter.grad.to_dense() != 0
                    self._before.append((parameter, parameter.detach().clone(), has_gradient))
                    self._dtype = dtype_name(parameter.dtype)

    def on_stepped(self, _optimizer: Any) -> None:
        if not self._before:
            return
        self.is_on = False
        with self.bus.unobserved():
            for p, old, has in self._before:
                lost = int(((p == old) & has).sum()), int(has.sum())
                self._lost.setdefault(id(p), []).append(lost)
        self._before = []
        self._place = self._place or user_place()

    def found(self, _made: Made, _error: str) -> Iterator[Misused]:
        of_all, of_some = list(self._lost.values()), ""
        if len(shares := _shares(of_all)) < OFTEN:
            return
        if median(shares) < self._MANY_LOST:  # some tensors may learn, and others not at all
            still = [one for one in of_all if median(_shares([one]) or [0.0]) >= self._MOST_LOST]
            shares, of_some = _shares(still), f" ({len(still)} of {len(of_all)} tensors)"
            if len(shares) < OFTEN:
                return
        certain = not of_some and min(shares) >= self._MOST_LOST
        percent = math.floor(100 * (min if certain else median)(shares))
        share = "All" if percent == 100 else f"{'At least ' if certain else ''}{percent}%"
        text = (
            f"{share} of the updates of 16-bit weights{of_some} are lost in each step because they are "
            "smaller than the spacing of 16-bit values. Keep the weights in FP32 and run the "
            "model under torch.autocast."
        )
        place, dtype = self._place, self._dtype
        scaled = self.bus.scaler is not None and dtype == "float16"  # a fused step does not raise
        code = "HG401" if scaled else self.code
        lost = Misused(kind="lost updates", code=code, sentence=text, place=place, dtype=dtype)
        yield lost.model_copy(update={"unsure": not certain})


def _shares(lost: list[list[tuple[int, int]]]) -> list[float]:
    """Return the share of lost updates in each step, over some parameters."""
    steps = (zip(*step, strict=True) for step in zip(*lost, strict=False))
    return [sum(gone) / sum(all_) for gone, all_ in steps if sum(all_)]
