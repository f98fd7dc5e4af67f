"""The counts of a guard as OpenTelemetry instruments, for Prometheus and other backends.

All instruments are *observable*: OpenTelemetry reads them through callbacks, so they add no work to a
training step. The callbacks run in a thread of the exporter. They read only ``guard.counts`` and
``guard.last_step``, which never wait. This module imports only ``opentelemetry-api``; the application
chooses the SDK and the exporter.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from halfguard.dist.collectives import rank
from halfguard.errors import MissingExtraError
from halfguard.guard.guard import Guard
from halfguard.records import Action, Cause

try:
    from opentelemetry.metrics import (
        CallbackOptions,
        Meter,
        MeterProvider,
        Observation,
        get_meter,
        get_meter_provider,
    )
except ImportError as error:
    raise MissingExtraError("halfguard.integrations.telemetry", "otel") from error

# The values of one instrument; each has the attributes that tell it apart from the others.
Values = Iterator[tuple[float, dict[str, str]]]


class Instrument(NamedTuple):
    """One instrument: a counter, or with ``counts=False`` a gauge."""

    name: str
    description: str
    read: Callable[[Guard], Values]
    counts: bool = True


def _by_action(guard: Guard) -> Values:
    counts = guard.counts
    for action, steps in (
        (Action.APPLY, counts.applied - counts.retried),
        (Action.RETRY, counts.retried),
        (Action.SKIP, sum(counts.skipped.values())),
        (Action.ROLL_BACK, counts.rollbacks),
    ):
        yield steps, {"action": action.value}


def _by_cause(guard: Guard) -> Values:
    # All causes, also those that never occurred: a series that starts at 1 has not increased.
    skipped = guard.counts.skipped
    for cause in Cause:
        yield skipped.get(cause, 0), {"cause": cause.value}


def _reductions(guard: Guard) -> Values:
    yield guard.counts.scale_reductions, {}


def _last(field: str) -> Callable[[Guard], Values]:
    def read(guard: Guard) -> Values:
        last = guard.last_step
        # An SDK drops NaN and infinity, with a warning at every scrape: a gap says the same.
        if last is not None and math.isfinite(value := getattr(last, field)):
            yield value, {}

    return read


INSTRUMENTS = (
    Instrument("halfguard.steps", "steps by action", _by_action),
    Instrument("halfguard.skipped_steps", "steps that were skipped, by cause", _by_cause),
    Instrument("halfguard.scale_reductions", "number of times the loss scale decreased", _reductions),
    Instrument("halfguard.scale", "loss scale of the last step", _last("scale"), counts=False),
    Instrument("halfguard.loss", "loss of the last step", _last("loss"), counts=False),
    Instrument("halfguard.grad_norm", "gradient norm of the last step", _last("grad_norm"), counts=False),
)  # fmt: skip


class _Observed(NamedTuple):
    guard: weakref.ref[Guard]
    attributes: Mapping[str, str]


# An SDK makes an instrument once and ignores later callbacks, so one callback serves all guards.
_observed: weakref.WeakKeyDictionary[MeterProvider, list[_Observed]] = weakref.WeakKeyDictionary()


def observe(
    guard: Guard,
    *,
    attributes: Mapping[str, str] | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Export the metrics of ``guard`` to OpenTelemetry until the guard is garbage-collected.

    Call this function once per guard. With several guards in one process, ``attributes`` distinguish them.
    Only rank 0 exports metrics, because the counts of all ranks are equal.
    """
    if rank() != 0:
        return
    provider = get_meter_provider() if meter_provider is None else meter_provider
    first = provider not in _observed
    guards = _observed.setdefault(provider, [])
    guards.append(_Observed(weakref.ref(guard), dict(attributes or {})))
    if first:
        meter = get_meter("halfguard", meter_provider=provider)
        for instrument in INSTRUMENTS:
            _create(meter, instrument, guards)


def _create(meter: Meter, instrument: Instrument, guards: list[_Observed]) -> None:
    def callback(_: CallbackOptions) -> Iterable[Observation]:
        for observed in tuple(guards):
            guard = observed.guard()
            if guard is not None:
                for value, attributes in instrument.read(guard):
                    yield Observation(value, {**observed.attributes, **attributes})

    create = meter.create_observable_counter if instrument.counts else meter.create_observable_gauge
    create(instrument.name, [callback], description=instrument.description)
