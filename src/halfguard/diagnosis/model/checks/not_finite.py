"""Results that are NaN or infinite: here, on CUDA, or hidden from a log."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.repeats import (
    bad_result,
    can_repeat,
    find_culprit,
    in_fp32,
    named_results,
    repeat_forward,
)
from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.formats import dtype_name
from halfguard.precision.emulation import emulate_autocast
from halfguard.records.autopsy import Culprit
from halfguard.records.finding import Finding

_NOT_PRECISION = (
    "Check the batch and that line for a division by a count of 0 (all labels ignored, an empty mask) or a "
    "logarithm or root of 0."
)


def check_hd115(setup: TrainingSetup) -> Iterator[Finding]:
    """Find the filter if anything runs in 16 bits, or was requested to.

    With ``logging_nan_inf_filter`` a nonfinite loss is logged as the mean of the others: the curve looks
    clean, but the run is broken. The filter is on by default, so it is a note until there is a nonfinite
    loss.
    """
    filters = getattr(setup.training_arguments, "logging_nan_inf_filter", False)
    half = any("16" in (name or "") for name in (setup.asked, setup.precision))
    if not filters or not (half or setup.trained_in_half):
        return
    now = setup.forward is not None and bad_result(named_results(setup.forward.result)) is not None
    yield Finding(
        code="HD115",
        severity="warning" if now else "note",
        message="logging_nan_inf_filter is enabled, so a NaN loss will not appear in the log.",
        subject="logging_nan_inf_filter",
        why="The Trainer replaces it with the mean of the other losses, so the curve looks healthy.",
        cure="args.logging_nan_inf_filter = False",
    )


def check_hg601(setup: TrainingSetup) -> Iterator[Finding]:
    """Report a loss, or an output, that is not finite, with the operation that returned it first."""
    if setup.forward is None or setup.forward.error is not None:
        return
    bad = bad_result(named_results(setup.forward.result))
    if bad is None:
        return
    culprit = find_culprit(setup) if can_repeat(setup) else None
    why, cure = _explain(setup, culprit)
    yield Finding(
        code="HG601",
        severity="error",
        message=f"the forward pass is not finite: {bad}.{describe_culprit(culprit)}",
        subject=None if culprit is None else culprit.name or culprit.module or None,
        why=why,
        cure=cure,
    )


def describe_culprit(culprit: Culprit | None) -> str:
    """Return a sentence with the operation, its module and its line; "" if it is unknown."""
    if culprit is None:
        return ""
    if culprit.kind != "op":
        return f" The {culprit.kind} {culprit.name} was not finite before the pass."
    where = "outside the model" if culprit.module is None else f"in {culprit.module or 'the model'}"
    line = f" ({culprit.place}: {culprit.code})" if culprit.file else ""
    return f" {culprit.op} {where} returned the first NaN or Inf{line}."


def island_line(module: str) -> str:
    """Return the line that keeps a module in FP32."""
    return f'halfguard.fp32_island(model.get_submodule("{module}"))'


def _explain(setup: TrainingSetup, culprit: Culprit | None) -> tuple[str, str]:
    if not can_repeat(setup):
        return (
            "With several ranks, the pass is not repeated to find the operation.",
            "Run doctor() in one process, with the batch of this rank.",
        )
    if culprit is not None and culprit.kind in ("parameter", "buffer"):
        return (
            "Every result that depends on it is also not finite, in any precision.",
            f"Load finite weights: {culprit.name} is not finite.",
        )
    with in_fp32(setup):
        again = repeat_forward(setup)
        in_half = not again.is_finite and _made_in_half(find_culprit(setup))
    if again.error:
        return (
            f"The forward pass raises an error in FP32, so no comparison is possible: {again.error}",
            "Fix this error first, then run the check again.",
        )
    if in_half:
        return (
            "The result is not finite in an FP32 run either, because the code casts to 16-bit.",
            "Remove that cast, or compute the line in float32.",
        )
    if not again.is_finite:
        return (
            "The result is not finite in FP32 either, so the precision is not the cause.",
            _NOT_PRECISION,
        )
    return ("In FP32 the result is finite, so a value overflowed the 16-bit format."), _cure(
        setup, culprit
    )


def _made_in_half(culprit: Culprit | None) -> bool:
    outputs = () if culprit is None else culprit.outputs
    return any(output.dtype in ("float16", "bfloat16") for output in outputs)


def _cure(setup: TrainingSetup, culprit: Culprit | None) -> str:
    """Return an island if it was seen to help, else the next best."""
    module = None if culprit is None else culprit.module
    if module and repeat_forward(setup, island=module).is_finite:
        return island_line(module)
    if module is None and culprit is not None:
        return f"Compute this line in float32: call .float() on its inputs ({culprit.place})."
    return "Find the modules that need FP32: halfguard plan ENTRY -o plan.yaml"


def check_hg601_on_cuda(setup: TrainingSetup) -> Iterator[Finding]:
    """Repeat a forward pass on a CPU under autocast by CUDA's rules, if it was finite by the CPU's.

    CPU autocast computes other operations in half than CUDA's. A forward pass that was tried on a laptop may
    so overflow on the GPU, or raise there: binary_cross_entropy is refused under CUDA's autocast.
    """
    if not can_repeat(setup) or setup.device_type != "cpu" or setup.forward is None:
        return
    used = {p.context.autocast for p in setup.forward.products} - {None}
    dtype = used.pop() if len(used) == 1 else None
    if dtype is None or bad_result(named_results(setup.forward.result)) is not None:
        return
    again = repeat_forward(setup, emulate_autocast("cuda", dtype=dtype))
    name = dtype_name(dtype)
    if "autocast" in again.error:  # other errors: the CPU may lack a kernel that the GPU has
        yield Finding(
            code="HG601",
            message=f"under CUDA's autocast in {name} the forward pass raises: {again.error}",
            subject="autocast",
            why=(
                "On this CPU it does not raise an error, because CUDA's autocast has different "
                "rules."
            ),
            cure="Use the function that takes logits, such as binary_cross_entropy_with_logits.",
        )
        return
    bad = None if again.error else bad_result(again.results)
    if bad is None:
        return
    culprit = find_culprit(setup, emulate_autocast("cuda", dtype=dtype))
    module = None if culprit is None else culprit.module
    yield Finding(
        code="HG601",
        message=f"under CUDA's autocast in {name} the forward pass is not finite: {bad}."
        f"{describe_culprit(culprit)}",
        subject=module or None,
        why=(
            "On this CPU the result is finite, because CUDA's autocast runs different operations "
            "in 16-bit precision."
        ),
        cure=island_line(module)
        if module
        else "Compute this line in float32: call .float() on its inputs.",
    )
