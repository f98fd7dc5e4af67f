"""Measure the speed of matrix products on a device: each precision over FP32, and FP32 alone.

Ratios come from interleaved runs. On a processor one thread runs, and processor time is measured instead of
wall time, so waiting for other processes is not counted. The result is still not exact: on a shared machine
the ratio of BF16 on matrix units varied from 3.1 to 6.0 within a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from halfguard.hardware.choice import Speeds
from halfguard.precision_names import MixedPrecisionName
from halfguard.workload.timing import medians, ratios, time_interleaved

DTYPES: dict[MixedPrecisionName, torch.dtype] = {
    "fp32": torch.float32,
    "fp16-mixed": torch.float16,
    "bf16-mixed": torch.bfloat16,
}
SMALLEST_SIDE, LARGEST_SIDE = 512, 4096
LONG_ENOUGH = 5e-3  # seconds of one FP32 product; starting it then takes no noticeable part of them
ROUNDS, FEWEST_ROUNDS = 9, 3
AT_MOST = 1.0  # seconds for all rounds; some processors are 80 times slower in FP16


def measure_speeds(device: torch.device) -> Speeds | None:
    """Return the speed of a square matrix product over FP32's; None if the device has no kernels for it."""
    runs: dict[str, Callable[[], object]] = {}
    try:
        side = _choose_side(device)
        for precision, dtype in DTYPES.items():
            x = _square(side, device, dtype)
            runs[precision] = partial(torch.mm, x, x)
        if device.type == "cpu":
            with _one_thread():
                seconds = _time(runs, clock=time.process_time)
        else:
            seconds = _time(runs)
    except RuntimeError:  # a card that this build of torch does not support
        return None
    times = ratios(seconds, against="fp32")
    return {precision: 1 / times[precision].median for precision in DTYPES}


def measure_rate(device: torch.device) -> float | None:
    """Return the FLOP/s of an FP32 product as in a training step: all threads, wall time."""
    try:
        x = _square(_choose_side(device), device, torch.float32)
        seconds = time_interleaved({"fp32": partial(torch.mm, x, x)}, rounds=ROUNDS)
    except RuntimeError:
        return None
    return 2.0 * len(x) ** 3 / medians(seconds)["fp32"]


def _time(
    runs: Mapping[str, Callable[[], object]], clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Return the seconds of each run in some rounds: in fewer if they take long."""
    first = time_interleaved(runs, rounds=1, warmup=1, clock=clock)
    round_takes = sum(one for (one,) in first.values())
    if round_takes >= AT_MOST:
        return first
    rounds = ROUNDS if round_takes * ROUNDS <= AT_MOST else FEWEST_ROUNDS
    return time_interleaved(runs, rounds=rounds, warmup=0, clock=clock)


def _choose_side(device: torch.device) -> int:
    """Return the side of a product that takes long enough; a slow accelerator needs no larger one."""
    side = SMALLEST_SIDE
    while device.type != "cpu" and side < LARGEST_SIDE:
        x = _square(side, device, torch.float32)
        seconds = time_interleaved({"fp32": partial(torch.mm, x, x)}, rounds=1, warmup=1)
        if seconds["fp32"][0] >= LONG_ENOUGH:
            break
        side *= 2
    return side


def _square(side: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.full((side, side), 0.5, dtype=dtype, device=device)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
