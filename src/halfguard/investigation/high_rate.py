"""A learning rate that is too high in any precision: a lower one lets the loss fall."""

from __future__ import annotations

import contextlib
import math

from halfguard.investigation.advice import describe_place
from halfguard.investigation.cures import untried
from halfguard.investigation.passes import Misused, PassResult, Place
from halfguard.investigation.printed_numbers import worse_numbers
from halfguard.investigation.proof import Proven, prove, run_patched
from halfguard.investigation.reference import OVER, Reference, end_of
from halfguard.investigation.script_passes import Investigation, Patched
from halfguard.investigation.worse_than_fp32 import ends_of
from halfguard.records.autopsy import Cure
from halfguard.repairs import settings

_SLOWER = (0.1, 0.02, 0.005)  # times the learning rate
_AS_AT_FIRST = 0.97  # of the first loss
_BETTER = 0.75  # of the loss


def lower_rate(
    one: Investigation, first: PassResult, reference: Reference, limits: Patched
) -> tuple[tuple[Misused, ...], Proven]:
    """Return a learning rate that is too high in any precision, if a lower one lets the loss fall."""
    start, end = next(iter(one.losses("losses")), math.nan), end_of(one.losses("losses"))
    script = one.script
    rate = first.made.rate
    if not script or not rate or not end > _AS_AT_FIRST * start > 0:
        return (), Proven()
    text = (
        f"The loss does not fall: it was {start:.4g} at first, and its median over the last quarter of "
        f"the run is {end:.4g}, in FP32 {end_of(reference.losses):.4g}. The learning rate of {rate:g} is too "
        "high in any precision: with a lower one the loss falls. Lower it"
    )
    cures, lines = list[Cure](), list[Place]()
    with contextlib.chdir(one.base):
        for part in _SLOWER:
            patch, lines = settings.learning_rate.with_places((script, 0), rate, part)
            sentence = f"{text}: {describe_place(next(iter(lines), None))}."
            cures += untried(sentence, patch, "")

    def judge(result: PassResult, _cure: Cure) -> str:
        if result.error or result.event is not None or result.ended not in OVER:
            return result.error or "it did not finish"
        now = end_of(one.losses("patched"))
        worse = worse_numbers(ends_of(one, "patched"), ends_of(one, "losses"))
        falls = now < _BETTER * end and not worse
        return "" if falls else f"it does not train better: the loss is {now:.4g}"

    proven = prove(cures, lambda patch: run_patched(one, patch, limits), judge)
    if proven.cure is None:
        return (), Proven()
    fault = Misused(kind="too fast", sentence=proven.cure.sentence, place=next(iter(lines), None))
    return (fault,), Proven(proven.cure, (reference.trial(None), *proven.trials))
