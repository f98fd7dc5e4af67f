"""HD101: the forward pass runs in another precision than requested.

A framework that was asked for FP32 has its own autocast switched off. If one was on, with FP32 weights, the
code of the model or of the loss has entered it itself: that is a request too, and reported as a note. So are
half weights under such a framework, if their updates are not lost (HD104 reports those that are), and a
forward pass whose code switches autocast off around every matrix product.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.measured_precision import describe_precision
from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.diagnosis.model.updates import MUCH, lost_share
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Compare the measured precision with the requested one."""
    found = setup.effective
    if found is None or found.as_asked:
        return
    cure = setup.advice.precision
    if setup.has_frozen_half_base:  # the base may stay in half
        cure = cure.replace("model.float()", "halfguard.upcast_trainable(model)")
    yield Finding(
        code="HD101",
        severity="note" if any(is_meant(setup) for is_meant in _MEANT) else "warning",
        message=f"{found.asked} was requested, but the forward pass ran {describe_precision(found.got)} "
        f"({found.evidence[0]}).",
        subject="precision",
        why=found.why,
        cure=cure,
    )


def _code_entered_autocast(setup: TrainingSetup) -> bool:
    measured = setup.measured
    if setup.framework == "plain" or setup.asked != "fp32" or measured is None:
        return False
    return measured.weights == "fp32" and measured.autocast != "off"


def _weights_are_half(setup: TrainingSetup) -> bool:
    """Return whether the code has made weights half, and no update of a trained one is known to be lost."""
    measured = setup.measured
    if setup.framework == "plain" or setup.asked != "fp32" or measured is None:
        return False
    found = setup.trained_in_half
    share = lost_share(found, setup.gradients) if found else 0.0
    return measured.autocast == "off" and share is not None and share < MUCH


def _code_left_autocast(setup: TrainingSetup) -> bool:
    if setup.forward is None or not (setup.asked or "").endswith("-mixed"):
        return False
    trained = [product for product in setup.forward.products if product.passes_gradient]
    return bool(trained) and all(product.context.island for product in trained)


_MEANT = (_code_entered_autocast, _weights_are_half, _code_left_autocast)
