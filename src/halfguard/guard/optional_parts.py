"""The parts of a guard that it may never need, each imported when it is asked for, and only here.

A default guard steps, measures and decides. Healing, recovery, watching, the islands of a plan and incidents
are three times as much code, and a configuration must switch them on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import nn

    from halfguard.guard.healing.healing import Healing
    from halfguard.guard.incidents import Incidents
    from halfguard.guard.recovery.recovery import Recovery
    from halfguard.guard.stepping.two_passes import AsItWas
    from halfguard.guard.watching.watching import Watching
    from halfguard.records.plan import LineIsland, PrecisionPlan
    from halfguard.trials.line_islands import LineIslands


def healing_class() -> type[Healing]:
    """Return the class that searches for FP32 islands, and makes them."""
    from halfguard.guard.healing.healing import Healing

    return Healing


def line_islands_class() -> type[LineIslands]:
    """Return the class that runs single lines in FP32."""
    from halfguard.trials.line_islands import LineIslands

    return LineIslands


def line_warning() -> Callable[[tuple[LineIsland, ...]], None]:
    """Return the function that names lines which stay in half."""
    from halfguard.trials.plans import warn_about_lines

    return warn_about_lines


def module_islands_maker() -> Callable[[nn.Module, PrecisionPlan], object]:
    """Return the function that makes the modules of a plan FP32 islands."""
    from halfguard.precision.islands import make_islands

    return make_islands


def recovery_class() -> type[Recovery]:
    """Return the class that takes snapshots and rolls back to them."""
    from halfguard.guard.recovery.recovery import Recovery

    return Recovery


def watching_class() -> type[Watching]:
    """Return the class that looks into sampled steps."""
    from halfguard.guard.watching.watching import Watching

    return Watching


def incidents_class() -> type[Incidents]:
    """Return the class that writes bad steps to disk."""
    from halfguard.guard.incidents import Incidents

    return Incidents


def save_on_host(model: nn.Module) -> AbstractContextManager[object]:
    """Return a context in which autograd saves tensors in host memory."""
    from halfguard.guard.stepping.saved_on_host import SavedOnHost

    return SavedOnHost(model)


def runner_as_it_was() -> Callable[..., AsItWas]:
    """Return the function that runs a bad step twice, and compares what it reads."""
    from halfguard.guard.stepping.two_passes import run_as_it_was

    return run_as_it_was


def finder_of_wrong_ranks() -> Callable[..., tuple[int, ...] | None]:
    """Return the function that repeats a healthy step, and compares it bit by bit."""
    from halfguard.guard.stepping.verifying import find_wrong_ranks

    return find_wrong_ranks
