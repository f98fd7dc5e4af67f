"""The forward pass raises, or runs in another precision than requested."""

from __future__ import annotations

import re
from collections.abc import Iterator

from halfguard.autocast_ops import MIXED_WRITE
from halfguard.diagnosis.model.forward import ForwardError
from halfguard.diagnosis.model.frameworks.inputs import CONVERSIONS, DTYPE_NAMES
from halfguard.diagnosis.model.measured_precision import (
    describe_precision,
    parse_precision,
)
from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.diagnosis.model.updates import MUCH, lost_share
from halfguard.formats import dtype_name
from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.finding import Finding


def check_hd100(setup: TrainingSetup) -> Iterator[Finding]:
    """Report the error that was raised, unless HD110 explains it better."""
    if setup.not_run:
        yield Finding(
            code="HD100",
            severity="note",
            message="the forward pass was not run, so its precision is unknown.",
            subject="training_step",
            why=setup.not_run,
            cure="Pass loss=: a function loss(module, batch) that returns the loss.",
        )
    error = None if setup.forward is None else setup.forward.error
    if error is None or is_dtype_mismatch(error):
        return
    module = error.call.context.module
    why, cure = _explain(setup, error)
    yield Finding(
        code="HG101" if "without overflow" in error.message else "HD100",
        severity="error",
        message=f"the forward pass raised{f' in {module}' if module else ''}: "
        f"{error.message}{error.place}",
        subject=module or None,
        why=why,
        cure=cure,
    )


def _explain(setup: TrainingSetup, error: ForwardError) -> tuple[str, str]:
    call, before = error.call, setup.advice.setup_calls
    if error.out_of_memory:
        return "", "To see what to change first, run: halfguard doctor ENTRY --cost"
    if "without overflow" in error.message:  # masked_fill(mask, -1e9) on a half tensor
        why = "A constant in the code is outside the range of the tensor's 16-bit dtype."
        return (
            why,
            "Use the limit of the dtype: torch.finfo(x.dtype).min instead of a number like -1e9.",
        )
    if call.context.autocast is not None and call.context.module:
        why = (
            f"{call.operation} was called under autocast and may have no kernel for these dtypes on this "
            "device."
        )
        return why, f'halfguard.fp32_island(model.get_submodule("{call.context.module}").float())'
    if before and error.missing_attribute:
        return (
            "Only the training step was run, without the hooks that run before it in training."
        ), before
    return "", "Run the same call without halfguard, in FP32."


def check_hd101(setup: TrainingSetup) -> Iterator[Finding]:
    """Compare the measured precision with the requested one.

    A framework that was asked for FP32 has its own autocast switched off. If one was on, with FP32 weights,
    the code of the model or of the loss has entered it itself: that is a request too, and reported as a note.
    So are half weights under such a framework, if their updates are not lost (HG402 reports those that are),
    a forward pass whose code switches autocast off around every matrix product, and FP32 on a CPU under a
    framework that runs FP16 on accelerators only.
    """
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


def _framework_declines_fp16(setup: TrainingSetup) -> bool:
    """Return whether a framework replaced FP16 by FP32 because this is a CPU: it has made no scaler either.

    FP32 does no harm to the training, no setting of the framework gives FP16 here, and an accelerator has it.
    """
    measured = setup.measured
    if setup.framework == "plain" or setup.device_type != "cpu" or setup.scaler_enabled:
        return False
    return setup.asked == "fp16-mixed" and measured is not None and measured.name == "fp32"


_MEANT = (
    _code_entered_autocast,
    _weights_are_half,
    _code_left_autocast,
    _framework_declines_fp16,
)


def check_hd110(setup: TrainingSetup) -> Iterator[Finding]:
    """Report the call that raised, with the dtypes of its operands."""
    error = None if setup.forward is None else setup.forward.error
    if error is None or not is_dtype_mismatch(error):
        return
    call, module = error.call, error.call.context.module
    where = "outside the model" if module is None else f"in {module or 'the model itself'}"
    yield Finding(
        code="HD110",
        severity="error",
        message=f"{call.operation} {where} received {' and '.join(map(dtype_name, call.dtypes))}: "
        f"{error.message}{error.place}",
        subject=module or None,
        why="Autocast does not cast values that are written into a tensor."
        if _is_write(error)
        else "Outside autocast, operands are not cast to a common dtype.",
        cure=_cure(setup, error),
    )


def is_dtype_mismatch(error: ForwardError) -> bool:
    """Return whether a call that autocast does not cast raised because of several dtypes, one of them half.

    Many functions, such as ``cat``, promote their operands and may raise for another reason. If a dtype is
    the reason, the message contains the word "type".
    """
    dtypes = error.call.dtypes
    half = len(dtypes) > 1 and any(dtype in HALF_DTYPES for dtype in dtypes)
    uncast = error.call.context.autocast is None or _is_write(error)
    return half and uncast and "type" in error.message.lower()


def _is_write(error: ForwardError) -> bool:
    return re.search(MIXED_WRITE, error.message) is not None


def _cure(setup: TrainingSetup, error: ForwardError) -> str:
    """Return a line that gives operands the requested dtype: autocast only if it was requested."""
    if _is_write(error):
        return "Cast the values before writing them: source.to(target.dtype)"
    half = next(str(dtype) for dtype in error.call.dtypes if dtype in HALF_DTYPES)
    if error.call.context.island:
        return _island_cure(setup, error.call.context.module)
    asked = None if setup.asked is None else parse_precision(setup.asked)
    if asked is None or asked.autocast != "off":
        dtype = half if asked is None else DTYPE_NAMES[asked.autocast]
        return (
            f'with torch.autocast("{setup.device_type}", dtype={dtype}):  # around the forward pass'
        )
    dtype = DTYPE_NAMES[asked.weights]
    parameters = () if setup.model is None else setup.model.parameters()
    if any(str(p.dtype) != dtype for p in parameters if p.is_floating_point()):
        return CONVERSIONS[asked.weights]
    if error.call.context.module is None:
        return f"Cast both operands there: .to({dtype})"
    return f"batch = batch.to({dtype})  # every floating-point tensor in it"


def _island_cure(setup: TrainingSetup, module: str | None) -> str:
    """Return a line for a region where autocast was switched off for FP32: its inputs must be FP32."""
    if setup.model is not None and module:
        parameters = setup.model.get_submodule(module).parameters()
        if any(parameter.dtype in HALF_DTYPES for parameter in parameters):
            return f'halfguard.fp32_island(model.get_submodule("{module}").float())'
    return "x = x.float()  # before the region where autocast is off"
