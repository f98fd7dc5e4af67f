"""NaN that torch does not compute: lines of NumPy, even if told to be silent, and a learning rate.

Data and schedules are often prepared by NumPy, whose operations torch does not see. NumPy calls a function at
a division by zero or an invalid value; what the script asked for (a warning, nothing, an exception) stays.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

from halfguard.investigation.advice import describe_place
from halfguard.investigation.passes import Place, Reason
from halfguard.replaying.function_modes import user_place

_HEARD = ("divide", "invalid")
_NAN = "invalid"
_MOST = 20  # lines


class NumpyErrors:
    """Keeps the lines, each with the name of its error."""

    def __init__(self) -> None:
        self.places: dict[Place, str] = {}

    def watch(self) -> None:
        """Listen from now on; nothing happens without NumPy."""
        try:
            import numpy as np  # noqa: PLC0415
        except ImportError:
            return
        seterr, state, note = np.seterr, np.errstate, self._note

        def heard_state(**options: Any) -> Any:
            return state(**_heard(options, note))

        def heard_seterr(**options: Any) -> Any:
            heard = _heard(options, note)
            if "call" in heard:
                np.seterrcall(heard.pop("call"))
            return seterr(**heard)

        np.errstate, np.seterr = heard_state, heard_seterr  # type: ignore[misc, assignment]
        np.seterrcall(self._warn)
        seterr(divide="call", invalid="call")

    def _note(self, what: str, _flag: int) -> None:
        place = user_place()
        if (
            place is not None
            and len(self.places) < _MOST
            and not self.places.get(place, "").startswith(_NAN)
        ):
            self.places[place] = what

    def _warn(self, what: str, flag: int) -> None:
        """Warn, as NumPy does if nobody has asked for anything else."""
        self._note(what, flag)
        warnings.warn(f"{what} encountered", RuntimeWarning, stacklevel=2)


def _heard(options: Mapping[str, Any], note: Any) -> dict[str, Any]:
    """Return the options of a state, in which an error that is ignored is noted."""
    everything = options.get("all")
    wanted = {name: options.get(name) or everything for name in _HEARD}
    ignored = {name: "call" for name, how in wanted.items() if how == "ignore"}
    others = [how for how in wanted.values() if how not in ("ignore", None)]
    if not ignored or others or "call" in options:
        return dict(options)
    return {**options, **ignored, "call": note}


class BadRate:
    """Listens for the first step whose learning rate is not finite."""

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self._schedule: Any = None

    def on_scheduled(self, schedule: Any) -> None:
        self._schedule = schedule

    def on_stepping(self, optimizer: Any) -> None:
        rates = [group.get("lr") for group in optimizer.param_groups]
        bad = [one for one in rates if isinstance(one, float) and not math.isfinite(one)]
        if not bad or self.reason is not None:
            return
        codes = [
            getattr(one, "__code__", None) for one in getattr(self._schedule, "lr_lambdas", ())
        ]
        places = [(code.co_filename, code.co_firstlineno) for code in codes if code is not None]
        made = "".join(f", by {describe_place(place)}" for place in places[:1])
        text = f"the learning rate of {type(optimizer).__name__} is {bad[0]}{made}"
        self.reason = Reason(text=text)
