"""HD100: the forward pass raises an error in this precision; a note if it must not be run at all."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.checks.hd110_mixed_dtypes import is_dtype_mismatch
from halfguard.diagnosis.model.forward import ForwardError
from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Report the error that was raised, unless HD110 explains it better."""
    if setup.not_run:
        yield Finding(
            code="HD100",
            severity="note",
            message="the forward pass was not run, so its precision is not known.",
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
        code="HD100",
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
        why = "A constant in the code is beyond the range of the tensor's 16-bit dtype."
        return (
            why,
            "Use the limit of the dtype: torch.finfo(x.dtype).min instead of a number like -1e9.",
        )
    if call.context.autocast is not None and call.context.module:
        why = f"{call.operation} was called under autocast and may have no kernel for these dtypes here."
        return why, f'halfguard.fp32_island(model.get_submodule("{call.context.module}").float())'
    if before and error.missing_attribute:
        return "Only the training step was run, without the hooks that run before it.", before
    return "", "Run the same call without halfguard, in FP32."
