"""HD117: finite under the CPU's autocast rules, but not under CUDA's.

CPU autocast computes other operations in half than CUDA's. A forward pass that was tried on a laptop may so
overflow on the GPU, or raise there: binary_cross_entropy is refused under CUDA's autocast.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.checks.hd116_not_finite import describe_culprit, island_line
from halfguard.diagnosis.model.repeats import (
    bad_result,
    can_repeat,
    find_culprit,
    named_results,
    repeat_forward,
)
from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.precision.emulation import emulate_autocast
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Repeat a forward pass on a CPU under autocast by CUDA's rules, if it was finite by the CPU's."""
    if not can_repeat(setup) or setup.device_type != "cpu" or setup.forward is None:
        return
    used = {p.context.autocast for p in setup.forward.products} - {None}
    dtype = used.pop() if len(used) == 1 else None
    if dtype is None or bad_result(named_results(setup.forward.result)) is not None:
        return
    again = repeat_forward(setup, emulate_autocast("cuda", dtype=dtype))
    name = str(dtype).removeprefix("torch.")
    if "autocast" in again.error:  # other errors: the CPU may lack a kernel that the GPU has
        yield Finding(
            code="HD117",
            message=f"under CUDA's autocast in {name} the forward pass raises: {again.error}",
            subject="autocast",
            why="On this CPU it does not: CUDA's autocast has other rules.",
            cure="Use the function that takes logits, such as binary_cross_entropy_with_logits.",
        )
        return
    bad = None if again.error else bad_result(again.results)
    if bad is None:
        return
    culprit = find_culprit(setup, emulate_autocast("cuda", dtype=dtype))
    module = None if culprit is None else culprit.module
    yield Finding(
        code="HD117",
        message=f"under CUDA's autocast in {name} the forward pass is not finite: {bad}."
        f"{describe_culprit(culprit)}",
        subject=module or None,
        why="On this CPU it is finite: CUDA's autocast computes other operations in half than the CPU's.",
        cure=island_line(module)
        if module
        else "Compute this line in float32: .float() on its inputs.",
    )
