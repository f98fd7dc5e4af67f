"""Warnings about a run that goes on, but not well. Pure: it is fed with decided steps, and reads no device.

Each warning is given once. The limits are far from what healthy runs do: the search for the first loss scale
(65536 down to 1024, say, or 2**50 down to 2**20) and single skipped steps give none.
"""

from __future__ import annotations

from collections import deque

from halfguard.records import Action, HealthWarning

ZERO_STEPS = 10  # applied steps in a row with a gradient norm of exactly 0
LOW_SCALE = 2.0**-10  # of the largest loss scale of an applied step, or of ...
FIRST_SCALE = 2.0**16  # ... torch's first scale: what lies above it is searched through
SCHEDULE_STEPS = 10  # skipped steps after which the learning rate was changed, at least ...
SCHEDULE_SHARE = 0.05  # ... this share of all steps: the growth of the scale costs one in thousands
ATTEMPTS = 200  # the last steps, of which ...
LEAST_APPLIED = 0.9  # ... this share must be applied
_APPLIED = (Action.APPLY, Action.RETRY)


class RunHealth:
    """Watches gradient norm, loss scale and the share of applied steps."""

    def __init__(self) -> None:
        self.told: list[HealthWarning] = []
        self._zeros = 0
        self._peak = 0.0  # the largest loss scale so far that was in use
        self._steps = 0
        self._moved = 0  # skipped steps after which the learning rate was changed
        self._recent: deque[bool] = deque(maxlen=ATTEMPTS)  # since the first applied step
        self._applied = 0  # of the recent ones

    def add(self, action: Action, grad_norm: float, scale: float) -> dict[HealthWarning, str]:
        """Add a step that was decided; return new warnings with their texts, mostly none."""
        applied = action in _APPLIED
        self._steps += 1
        if applied:
            self._zeros = self._zeros + 1 if grad_norm == 0 else 0
        self._peak = max(self._peak, scale if applied else min(scale, FIRST_SCALE))
        if applied or self._recent:  # before the first applied step the scale is searched for
            if len(self._recent) == ATTEMPTS:
                self._applied -= self._recent[0]
            self._recent.append(applied)
            self._applied += applied
        if self._zeros < ZERO_STEPS and not self.is_low(scale) and not self._applies_too_few:
            return {}
        return self._new(scale)

    def is_low(self, scale: float) -> bool:
        """Return whether the loss scale has fallen further than that of a healthy run."""
        return scale <= self._peak * LOW_SCALE

    def add_moved_schedule(self) -> dict[HealthWarning, str]:
        """Add a change of the learning rate after a skipped step; return a new warning, mostly none."""
        self._moved += 1
        few = self._moved < max(SCHEDULE_STEPS, SCHEDULE_SHARE * self._steps)
        if few or HealthWarning.SCHEDULE_AHEAD in self.told:
            return {}
        self.told.append(HealthWarning.SCHEDULE_AHEAD)
        text = (
            f"The learning rate was changed after {self._moved} steps that were skipped: the schedule runs "
            "ahead of the updates. Step the scheduler only after an applied step (guard.last.applied), and "
            "begin with a lower loss scale."
        )
        return {HealthWarning.SCHEDULE_AHEAD: text}

    @property
    def _applies_too_few(self) -> bool:
        full = len(self._recent) == ATTEMPTS
        return full and self._applied < LEAST_APPLIED * ATTEMPTS

    def _new(self, scale: float) -> dict[HealthWarning, str]:
        found = {}
        if self._zeros >= ZERO_STEPS:
            found[HealthWarning.ZERO_GRADIENTS] = (
                f"The gradient norm was exactly 0 in {ZERO_STEPS} applied steps in a row: nothing was "
                "learnt. Either the loss does not depend on the trained weights (detached, or saturated), or "
                "all gradients underflow."
            )
        if self.is_low(scale):
            found[HealthWarning.LOW_SCALE] = (
                f"The loss scale fell from {self._peak:g} to {scale:g}. A healthy run does not need that, "
                "and small gradients underflow at this scale. halfguard probe, or halfguard replay of an "
                "incident, shows where gradients overflow."
            )
        if self._applies_too_few:
            found[HealthWarning.FEW_APPLIED] = (
                f"Only {self._applied} of the last {ATTEMPTS} steps were applied. The summary counts the "
                "causes."
            )
        new = {warning: text for warning, text in found.items() if warning not in self.told}
        self.told += new
        return new
