"""Check that a guarded step needs hardly more memory than the bare loop: no copy of weights or gradients.

The peak is the allocator's where it keeps one; elsewhere live tensors are counted. The guard may keep a
copy of the buffers, the batches of steps that are not decided yet, and a few numbers for each parameter
tensor.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from halfguard.acceptance.jobs import FUSED
from halfguard.acceptance.large_job import LargeJob, Step, width_for
from halfguard.acceptance.setting import Cases, Setting
from halfguard.records.acceptance import AcceptanceCase
from halfguard.step.random_state import seeded
from halfguard.workload.memory import measure_step_memory

NAME = "memory"
CLAIM = (
    "The peak memory of a guarded step is that of the bare loop, but for a few numbers per tensor."
)

WARM_UP = 4
UNDECIDED_STEPS = 3  # the one in progress, and two whose rows are read later
BYTES_PER_TENSOR = 1024  # two blocks of CUDA's allocator, which rounds up to 512 bytes
BYTES_ANYWAY = 16 * 1024


def run(setting: Setting) -> Cases:
    """Yield a case for a fused optimizer and another."""
    for optimizer in (FUSED, "AdamW foreach"):
        with seeded(0):
            yield _compare(setting, optimizer)


def _compare(setting: Setting, optimizer: str) -> AcceptanceCase:
    bare = _peak(setting, optimizer, LargeJob.bare)
    guarded = _peak(setting, optimizer, LargeJob.guarded)
    allowed = _allowed(LargeJob(setting.device, optimizer, width_for(setting)))
    more = guarded - bare
    problem = "" if more <= allowed else f"{more} bytes more than bare, {allowed} are allowed"
    return AcceptanceCase.judged(
        optimizer, problem, bare_bytes=bare, guarded_bytes=guarded, allowed_more=allowed
    )


def _allowed(job: LargeJob) -> int:
    buffers = sum(buffer.nbytes for buffer in job.model.buffers())
    tensors = sum(1 for _ in job.model.parameters())
    batches = UNDECIDED_STEPS * job.batch.nbytes
    return 2 * buffers + batches + BYTES_PER_TENSOR * tensors + BYTES_ANYWAY


def _peak(setting: Setting, optimizer: str, make_step: Callable[[LargeJob], Step]) -> int:
    module, device = setting.module, setting.device
    has_peak = hasattr(module, "max_memory_allocated")
    gc.collect()
    before = module.memory_allocated(device) if has_peak else 0
    job = LargeJob(device, optimizer, width_for(setting))
    step = make_step(job)
    for _ in range(WARM_UP):
        step()
    if not has_peak:
        found = measure_step_memory(step, model=job.model, optimizer=job.optimizer, device=device)
        return found.peak
    module.synchronize()
    module.reset_peak_memory_stats(device)
    step()
    module.synchronize()
    return int(module.max_memory_allocated(device) - before)
