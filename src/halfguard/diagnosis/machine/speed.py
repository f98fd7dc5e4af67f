"""How fast matrix products are on a device: in each precision over FP32, and FP32 by itself.

Ratios come from interleaved runs. On a processor they are taken with one thread, in seconds of the processor
rather than of the wall, so that waiting for other work is not counted. What remains is not exact: on a shared
machine the ratio of BF16 on matrix units was seen anywhere from 3.1 to 6.0 within a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from halfguard.diagnosis.machine.measured import Speeds
from halfguard.records.machine import Precision
from halfguard.workload.timing import interleaved, medians, ratios

DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "fp16-mixed": torch.float16,
    "bf16-mixed": torch.bfloat16,
}
SIDE = 4096
SIDE_ON_CPU = 512
ROUNDS = 9


def measure_speeds(device: torch.device) -> Speeds | None:
    """The speed of a square matrix product over that in FP32; None where there are no kernels for it."""
    runs: dict[str, Callable[[], object]] = {}
    try:
        for precision, dtype in DTYPES.items():
            x = _square(device, dtype)
            runs[precision] = partial(torch.mm, x, x)
        if device.type == "cpu":
            with _one_thread():
                seconds = interleaved(runs, rounds=ROUNDS, clock=time.process_time)
        else:
            seconds = interleaved(runs, rounds=ROUNDS)
    except RuntimeError:  # a card that this build of torch does not support
        return None
    times = ratios(seconds, against="fp32")
    return {precision: 1 / times[precision].median for precision in DTYPES}


def measure_rate(device: torch.device) -> float | None:
    """Operations a second of an FP32 product as a training step runs it: all threads, by the wall clock."""
    try:
        x = _square(device, torch.float32)
        seconds = interleaved({"fp32": partial(torch.mm, x, x)}, rounds=ROUNDS)
    except RuntimeError:
        return None
    return 2.0 * len(x) ** 3 / medians(seconds)["fp32"]


def _square(device: torch.device, dtype: torch.dtype) -> Tensor:
    side = SIDE_ON_CPU if device.type == "cpu" else SIDE
    return torch.full((side, side), 0.5, dtype=dtype, device=device)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
