"""HD110: operands of two dtypes meet outside of autocast, and torch raises."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.forward import Raised
from halfguard.diagnosis.model.frameworks.conversions import CONVERSION, DTYPE
from halfguard.diagnosis.model.measured_precision import named
from halfguard.diagnosis.model.subject import Subject
from halfguard.diagnosis.model.wording import spoken
from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Report the call that raised, with what it was given."""
    raised = None if subject.forward is None else subject.forward.raised
    if raised is None or not is_mixture(raised):
        return
    call, module = raised.call, raised.call.around.module
    yield Finding(
        code="HD110",
        severity="error",
        message=f"{call.operation} {_where(module)} was given "
        f"{' and '.join(map(spoken, call.dtypes))}: {raised.message}{raised.place}",
        subject=module or None,
        why="Outside of autocast nothing casts operands to one dtype.",
        cure=_cure(subject, raised),
    )


def is_mixture(raised: Raised) -> bool:
    """Whether a call was refused operands of several dtypes, one of them half, that autocast would cast.

    Torch promotes in many calls, such as ``cat``, and may refuse their operands for another reason: where
    the reason is a dtype, its message speaks of types.
    """
    dtypes = raised.call.dtypes
    half = len(dtypes) > 1 and any(dtype in HALF_DTYPES for dtype in dtypes)
    return half and raised.call.around.autocast is None and "type" in raised.message.lower()


def _where(module: str | None) -> str:
    return "outside the model" if module is None else f"in {module or 'the model itself'}"


def _cure(subject: Subject, raised: Raised) -> str:
    """What brings the operands to the dtype that was asked for: autocast only if it belongs to that."""
    half = next(str(dtype) for dtype in raised.call.dtypes if dtype in HALF_DTYPES)
    if raised.call.around.island:
        return _island_cure(subject, raised.call.around.module)
    asked = None if subject.asked is None else named(subject.asked)
    if asked is None or asked.autocast != "off":
        dtype = half if asked is None else DTYPE[asked.autocast]
        return f'with torch.autocast("{subject.device_type}", dtype={dtype}):  # around the forward pass'
    dtype = DTYPE[asked.weights]
    parameters = () if subject.model is None else subject.model.parameters()
    if any(str(p.dtype) != dtype for p in parameters if p.is_floating_point()):
        return CONVERSION[asked.weights]
    if raised.call.around.module is None:
        return f"Cast both operands there: .to({dtype})"
    return f"batch = batch.to({dtype})  # every floating-point tensor of it"


def _island_cure(subject: Subject, module: str | None) -> str:
    """Autocast is there already and was switched off for FP32: all that enters has to be FP32."""
    if subject.model is not None and module:
        parameters = subject.model.get_submodule(module).parameters()
        if any(parameter.dtype in HALF_DTYPES for parameter in parameters):
            return f'halfguard.fp32_island(model.get_submodule("{module}").float())'
    return "x = x.float()  # before the region where autocast is off"
