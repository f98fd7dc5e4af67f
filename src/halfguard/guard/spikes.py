"""Limits on finite losses and gradient norms, which follow the run. Pure functions of numbers.

The limit of a value is its mean over the last applied steps plus ``sigma`` standard deviations. A step above
it is refused, so a single spike is never applied, and refused values do not move the mean.

A level that lasts or recurs is not a spike: a loss that is 100 times larger from some step on, or a reward in
one of 100 steps. So after ``ACCEPT_AFTER`` refused spikes the limit rises to ``_SPREAD`` times their median
distance from the mean, if they agree: the second largest distance must be at most ``_SPREAD`` times the
second smallest. The next steps at this level are applied, and move the mean. Levels and refused spikes are
forgotten after ``_MEMORY`` windows of applied steps that did not need them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from halfguard.formats import FP32
from halfguard.guard.config import SpikeConfig

WINDOW = 128  # applied steps that the limits follow
WARM_UP = 32  # applied steps before there are limits
ACCEPT_AFTER = 5  # refused spikes
_MEMORY = 8  # windows
_SPREAD = 4.0
_LEAST_DEVIATION = 0.01


@dataclass(frozen=True)
class SpikeMemory:
    """The last applied steps, the last refused spikes, and the levels that were accepted."""

    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()
    refused_losses: tuple[float, ...] = ()
    refused_norms: tuple[float, ...] = ()
    loss_level: float = -FP32.largest
    norm_level: float = -FP32.largest
    unused: int = 0  # applied steps that needed neither refused spikes nor levels

    def limits(self, spike: SpikeConfig) -> tuple[float, float]:
        """Return the limits on loss and gradient norm; infinite during the warm-up."""
        if len(self.losses) < WARM_UP:
            return math.inf, math.inf
        loss, norm = self._limits_of_window(spike)
        return max(loss, self.loss_level), max(norm, self.norm_level)

    def after_applied(self, loss: float, grad_norm: float, spike: SpikeConfig) -> SpikeMemory:
        """Return the memory after an applied step."""
        keep = WINDOW - 1
        losses = (*self.losses[-keep:], loss)
        norms = (*self.grad_norms[-keep:], grad_norm)
        levels = max(self.loss_level, self.norm_level)
        if not self.refused_losses and levels <= -FP32.largest:  # nothing to forget
            return SpikeMemory(losses, norms)
        aged = self._aged(loss, grad_norm, spike)
        return replace(aged, losses=losses, grad_norms=norms)

    def after_refused(self, loss: float, grad_norm: float) -> SpikeMemory:
        """Return the memory after a refused spike."""
        if len(self.losses) < WARM_UP:
            return self  # there is no limit yet that could follow it
        return replace(
            self,
            refused_losses=(*self.refused_losses, loss)[-ACCEPT_AFTER:],
            refused_norms=(*self.refused_norms, grad_norm)[-ACCEPT_AFTER:],
            unused=0,
        )

    def accept(self, spike: SpikeConfig) -> SpikeMemory | None:
        """Return the memory with a level for the refused spikes; None if they do not agree on one."""
        if len(self.refused_losses) < ACCEPT_AFTER:
            return None
        loss = accepted_level(self.losses, self.refused_losses, spike.sigma)
        norm = accepted_level(self.grad_norms, self.refused_norms, spike.sigma)
        if loss is None or norm is None:
            return None
        return replace(
            self,
            refused_losses=(),
            refused_norms=(),
            loss_level=max(loss, self.loss_level),
            norm_level=max(norm, self.norm_level),
        )

    def _limits_of_window(self, spike: SpikeConfig) -> tuple[float, float]:
        return upper_limit(self.losses, spike.sigma), upper_limit(self.grad_norms, spike.sigma)

    def _aged(self, loss: float, grad_norm: float, spike: SpikeConfig) -> SpikeMemory:
        if self.unused + 1 >= _MEMORY * WINDOW:
            return SpikeMemory()
        limits = self._limits_of_window(spike)
        needed = loss > limits[0] or grad_norm > limits[1]
        return replace(self, unused=0 if needed else self.unused + 1)


def upper_limit(values: Sequence[float], sigma: float) -> float:
    """Return the limit that follows from the last applied steps, as the device holds it."""
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    # Steps that hardly differ have almost no deviation; a change of 1% of the mean is still no spike.
    deviation = max(math.sqrt(variance), _LEAST_DEVIATION * abs(mean))
    return as_float32(mean + sigma * deviation)


def accepted_level(values: Sequence[float], refused: Sequence[float], sigma: float) -> float | None:
    """Return the level that includes refused spikes; None if they do not agree on one.

    If most of them are within the limit that follows from ``values``, no level is needed.
    """
    mean, limit = math.fsum(values) / len(values), upper_limit(values, sigma)
    middle = median(refused)
    if middle <= limit:
        return -FP32.largest
    distances = sorted(value - mean for value in refused)
    if not 0 < distances[-2] <= _SPREAD * distances[1]:
        return None
    return min(as_float32(mean + _SPREAD * (middle - mean)), FP32.largest)


def as_float32(value: float) -> float:
    """Round to float32. The device compares in it; with the same limit, host and device agree."""
    return value if math.isinf(value) else float(struct.unpack("f", struct.pack("f", value))[0])
