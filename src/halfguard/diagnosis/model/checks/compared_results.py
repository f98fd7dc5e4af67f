"""Results that are finite, but another way of running the model gives others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from halfguard.diagnosis.model.forward import ObservedForward
from halfguard.diagnosis.model.repeats import (
    RepeatedForward,
    bad_result,
    can_repeat,
    find_lossy_line,
    in_fp32,
    named_results,
    relative_error,
    repeat_forward,
)
from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.finding import Finding
from halfguard.step.nested import floating_tensors
from halfguard.step.parameters import COMPILED

# Relative differences that fusion explains: about 16 roundings of the narrowest dtype of the pass.
_TOLERANCE = {torch.float16: 0.016, torch.bfloat16: 0.125}
_FP32_TOLERANCE = 1e-3
_FAR = 0.25
_LARGEST = (
    50_000_000  # half weights that are converted to compare; a larger model may not fit twice
)


def check_hd118(setup: TrainingSetup) -> Iterator[Finding]:
    """Compare both modes, if the model or a part of it is compiled.

    A function that is compiled by a decorator is not recognized. Where random numbers are drawn, only
    finiteness is compared: compiled code draws others.

    The compiler fuses operations and leaves out casts to half between them, so that an overflow or a rounding
    of eager mode is not there any more, or appears only there. What was tested eagerly is then not what is
    trained.
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
            message=f"torch.compile returns a different result from eager mode: {difference}.",
            subject="torch.compile",
            why="The compiler omits casts to 16-bit between operations that it fuses.",
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
        finite = "all values are finite"
        return f"eager, {bad or finite}; compiled, {bad_compiled or finite}"
    if bad is not None or eager.drew_random_numbers:
        return ""
    for name, one in eager.results.items():
        other = compiled.results.get(name)
        if other is not None and other.shape == one.shape:
            error = relative_error(one, other)
            if error > tolerance:
                return f"{name} differs by {error:.2g} (relative)"
    return ""


def check_hg609(setup: TrainingSetup) -> Iterator[Finding]:
    """Repeat a pass in FP32 if something of it was in 16 bits, and compare the loss or the outputs.

    Rounding changes a result by a few thousandths. A quarter of it or more means that a number left the range
    of 16 bits and the infinity was swallowed, as in ``1 / (1 + x * x)``, or that digits were lost in a
    difference.

    A loss that is near 0 by design, as the KL divergence from a copy, is all rounding: a loss must also
    differ by a quarter of the size of the model's outputs, or the outputs themselves must differ by a
    quarter.
    """
    model, forward = setup.model, setup.forward
    if model is None or forward is None or not can_repeat(setup):
        return
    results = named_results(forward.result)
    if not _can_be_fp32(model, forward) or bad_result(results) is not None:
        return
    inputs = model.register_forward_pre_hook(_fp32_inputs, with_kwargs=True)
    with inputs, in_fp32(setup), _outputs(model) as outputs:
        full = repeat_forward(setup)
    if not full.is_finite or full.drew_random_numbers:
        return
    for name, one in results.items():
        other = full.results.get(name)
        if other is None or other.shape != one.shape:
            continue
        error = relative_error(one, other)
        if error > _FAR:
            if name == "the loss" and _is_rounding(setup, model, one, other, outputs):
                return
            yield _differs(setup, name, error)
            return


def _differs(setup: TrainingSetup, name: str, error: float) -> Finding:
    message = f"{name} differs by {error:.0%} from its value in an FP32 run of the same batch"
    why = (
        "Rounding explains less than 1% of this. Either a value overflows and a later operation swallows "
        "the Inf, or digits are lost in a subtraction."
    )
    place = find_lossy_line(setup)
    if place is None or not place[0]:
        cure = "Find the modules that need FP32: halfguard plan ENTRY -o plan.yaml"
        return Finding(code="HG609", message=f"{message}.", subject=name, why=why, cure=cure)
    file, line, how = place
    message = f"{message}: at {file}:{line}, {how}."
    cure = (
        f"Compute line {line} of {file} in FP32: call .float() on its inputs and disable autocast."
    )
    return Finding(
        code="HG609", message=message, path=file, line=line, subject=name, why=why, cure=cure
    )


def _is_rounding(
    setup: TrainingSetup, model: nn.Module, loss: Tensor, full: Tensor, outputs: list[Tensor]
) -> bool:
    """Return whether a loss differs by little for the outputs that it was computed from, which do not."""
    size = max((_size(tensor) for tensor in outputs), default=0.0)
    if abs(float(loss) - float(full)) > _FAR * size:
        return False
    with _outputs(model) as half:
        repeat_forward(setup)
    pairs = list(zip(half, outputs, strict=False))
    same = len(half) == len(outputs) and all(a.shape == b.shape for a, b in pairs)
    return same and all(relative_error(a, b) <= _FAR for a, b in pairs)


def _size(tensor: Tensor) -> float:
    """Return the root of the mean square of the finite elements."""
    finite = tensor[tensor.isfinite()].double()
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


@contextmanager
def _outputs(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the floating-point outputs of the calls of the model, except single numbers."""
    found: list[Tensor] = []

    def collect(_module: nn.Module, _args: Any, output: Any) -> None:
        found.extend(t.detach() for _, t in floating_tensors(output) if t.numel() > 1)

    with model.register_forward_hook(collect):
        yield found


def _can_be_fp32(model: nn.Module, forward: ObservedForward) -> bool:
    """Return whether the pass used 16 bits, and its half weights are few enough to be converted."""
    tensors = chain(model.parameters(), model.buffers())
    half = sum(tensor.numel() for tensor in tensors if tensor.dtype in HALF_DTYPES)
    products = any(product.dtype in HALF_DTYPES for product in forward.products)
    return half <= _LARGEST and (half > 0 or products)


def _fp32_inputs(_module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Return half inputs of the model in FP32; casts in its own code stay."""
    return tree_map_only(
        Tensor, lambda t: t.float() if t.dtype in HALF_DTYPES else t, (args, kwargs)
    )
