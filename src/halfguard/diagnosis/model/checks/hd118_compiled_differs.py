"""HD118: torch.compile gives another result than eager mode.

The compiler fuses operations and leaves out casts to half between them, so that an overflow or a rounding of
eager mode is not there any more, or appears only there. What was tested eagerly is then not what is trained.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from halfguard.diagnosis.model.repeats import (
    RepeatedForward,
    bad_result,
    can_repeat,
    relative_error,
    repeat_forward,
)
from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.records.finding import Finding
from halfguard.step.parameters import COMPILED

# Relative differences that fusion explains: about 16 roundings of the narrowest dtype of the pass.
_TOLERANCE = {torch.float16: 0.016, torch.bfloat16: 0.125}
_FP32_TOLERANCE = 1e-3


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Compare both modes, if the model or a part of it is compiled.

    A function that is compiled by a decorator is not recognized. Where random numbers are drawn, only
    finiteness is compared: compiled code draws others.
    """
    model = setup.model
    if model is None or not can_repeat(setup) or not any(map(_is_compiled, model.modules())):
        return
    eager, compiled = repeat_forward(setup), repeat_forward(setup, eager=False)
    if eager.error or compiled.error:
        return
    difference = _describe_difference(eager, compiled, _tolerance(setup))
    if difference:
        yield Finding(
            code="HD118",
            message=f"torch.compile gives another result than eager mode: {difference}.",
            subject="torch.compile",
            why="The compiler leaves out casts to 16 bits between operations that it fuses.",
            cure="import torch._inductor.config\n"
            "torch._inductor.config.emulate_precision_casts = True  # before the model is compiled",
        )


def _is_compiled(module: nn.Module) -> bool:
    compiled_in_place = getattr(module, "_compiled_call_impl", None) is not None
    return compiled_in_place or COMPILED in dict(module.named_children())


def _tolerance(setup: TrainingSetup) -> float:
    dtypes = {p.dtype for p in setup.forward.products} if setup.forward is not None else set()
    dtypes |= set() if setup.model is None else {p.dtype for p in setup.model.parameters()}
    return max(
        [_TOLERANCE.get(dtype, _FP32_TOLERANCE) for dtype in dtypes], default=_FP32_TOLERANCE
    )


def _describe_difference(
    eager: RepeatedForward, compiled: RepeatedForward, tolerance: float
) -> str:
    bad, bad_compiled = bad_result(eager.results), bad_result(compiled.results)
    if (bad is None) != (bad_compiled is None):
        return f"eager, {bad or 'all is finite'}; compiled, {bad_compiled or 'all is finite'}"
    if bad is not None or eager.drew_random_numbers:
        return ""
    for name, one in eager.results.items():
        other = compiled.results.get(name)
        if other is not None and other.shape == one.shape:
            error = relative_error(one, other)
            if error > tolerance:
                return f"{name} differs by {error:.2g} (relative)"
    return ""
