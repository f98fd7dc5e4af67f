"""HD110: a call outside of autocast gets operands of two dtypes, and torch raises."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.forward import ForwardError
from halfguard.diagnosis.model.frameworks.conversions import CONVERSIONS, DTYPE_NAMES
from halfguard.diagnosis.model.measured_precision import dtype_name, parse_precision
from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Report the call that raised, with the dtypes of its operands."""
    error = None if setup.forward is None else setup.forward.error
    if error is None or not is_dtype_mismatch(error):
        return
    call, module = error.call, error.call.context.module
    where = "outside the model" if module is None else f"in {module or 'the model itself'}"
    yield Finding(
        code="HD110",
        severity="error",
        message=f"{call.operation} {where} was given "
        f"{' and '.join(map(dtype_name, call.dtypes))}: {error.message}{error.place}",
        subject=module or None,
        why="Outside of autocast, operands are not cast to one dtype.",
        cure=_cure(setup, error),
    )


def is_dtype_mismatch(error: ForwardError) -> bool:
    """Return whether a call outside of autocast raised because of several dtypes, one of them half.

    Many functions, such as ``cat``, promote their operands and may raise for another reason. If a dtype is
    the reason, the message contains the word "type".
    """
    dtypes = error.call.dtypes
    half = len(dtypes) > 1 and any(dtype in HALF_DTYPES for dtype in dtypes)
    return half and error.call.context.autocast is None and "type" in error.message.lower()


def _cure(setup: TrainingSetup, error: ForwardError) -> str:
    """Return a line that gives operands the requested dtype: autocast only if it was requested."""
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
