"""HD110: operands of two dtypes meet outside of autocast, and torch raises."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.doctor.model.forward import Raised
from halfguard.doctor.model.subject import Subject
from halfguard.doctor.model.wording import spoken
from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Report the call that raised, with what it was given."""
    raised = None if subject.forward is None else subject.forward.raised
    if raised is None or not is_mixture(raised):
        return
    dtypes = [spoken(dtype) for dtype in raised.dtypes]
    half = next(str(dtype) for dtype in raised.dtypes if dtype in HALF_DTYPES)
    yield Finding(
        code="HD110",
        severity="error",
        message=f"{raised.operation} in {raised.module or 'the model itself'} was given "
        f"{' and '.join(dtypes)}: {raised.message}{raised.place}",
        subject=raised.module or None,
        why="Outside of autocast nothing casts operands to one dtype.",
        cure=f'with torch.autocast("{subject.device_type}", dtype={half}):  # around the forward pass',
    )


def is_mixture(raised: Raised) -> bool:
    """Whether a call was refused operands of several dtypes, one of them half, that autocast would cast."""
    half = any(dtype in HALF_DTYPES for dtype in raised.dtypes)
    return raised.autocast is None and half and len(raised.dtypes) > 1
