"""The parity self-test: each operation in each format against float64, on this device, at a realistic size.

Some devices pass every small probe and give NaN in training: the GTX 16 series is the known case. So
operations run at the size of real layers and at the user's batch size; all of the output must be finite, and
a part of it is compared with float64 within the limits of ``bounds``. The operations are passed in, so
that a test can plant a fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from halfguard.diagnosis.parity.bounds import ON_ACCELERATORS, Arithmetic
from halfguard.diagnosis.parity.cases import CASES, OPERATIONS, Case, Operations, Tensors
from halfguard.records.machine import ParityRow
from halfguard.workload.out_of_memory import is_out_of_memory

FORMATS = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}
BATCH_SIZE = 16  # on an accelerator; a processor is rarely at fault, and slow
BATCH_SIZE_ON_CPU = 4


def parity(
    device: torch.device | str = "cpu",
    batch_size: int | None = None,
    operations: Operations = OPERATIONS,
    seed: int = 0,
) -> Iterator[ParityRow]:
    """One row after another: every operation in every format, on a device."""
    device = torch.device(device)
    batch = batch_size or (BATCH_SIZE_ON_CPU if device.type == "cpu" else BATCH_SIZE)
    for name, operation in operations.items():
        made = CASES[name].make(batch, torch.Generator().manual_seed(seed))
        for precision in FORMATS:
            yield _row(name, operation, precision, made, device)


def _row(
    name: str, operation: Callable[..., Tensor], precision: str, made: Tensors, device: torch.device
) -> ParityRow:
    """One operation in one format; at half the batch where there is no room: a full device is not wrong."""
    case, dtype = CASES[name], FORMATS[precision]
    inputs = tuple(x.to(dtype) for x in made)
    try:
        error, detail = _compare(
            case, operation, inputs, device, arithmetic_of(name, device, dtype)
        )
    except _NoRoomError:
        half = len(made[0]) // 2
        fewer = tuple(x[:half] if part else x for x, part in zip(made, case.split, strict=True))
        return _row(name, operation, precision, fewer, device)
    return ParityRow(
        operation=name,
        precision=precision,
        size=" by ".join(str(list(x.shape)) for x in inputs),
        error=error,
        detail=detail,
    )


class _NoRoomError(Exception):
    """The batch does not fit, and is larger than one element."""


def _compare(
    case: Case,
    operation: Callable[..., Tensor],
    inputs: Tensors,
    device: torch.device,
    arithmetic: Arithmetic,
) -> tuple[float, str]:
    batch = inputs[0].shape[0]
    with torch.no_grad():
        try:
            output = operation(*(x.to(device) for x in inputs))
        except RuntimeError as failure:  # no kernel, or out of memory
            if is_out_of_memory(failure) and batch > 1:
                raise _NoRoomError from failure
            return math.inf, str(failure).strip().splitlines()[0]
        bad = output.numel() - int(output.isfinite().sum())
        if bad:
            return math.inf, f"{bad} of {output.numel()} elements are NaN or infinite"
        taken = tuple(
            (case.part(x, batch) if part else x).double()
            for x, part in zip(inputs, case.split, strict=True)
        )
        exact, bound = case.expect(taken, arithmetic)
        found = case.part(output, batch).cpu().double()
        error = float(((found - exact).abs() / bound).max())
    return error, "" if error <= 1 else f"{error:.3g} times as far off as rounding allows"


def arithmetic_of(operation: str, device: torch.device, dtype: torch.dtype) -> Arithmetic:
    """What is known about how a device computes an operation."""
    if device.type == "cpu":
        return Arithmetic(dtype)
    if dtype == torch.float32:
        tf32 = device.type == "cuda" and _reads_tf32(operation)
        return Arithmetic(
            dtype, roundings=ON_ACCELERATORS, input_roundoff=2.0**-11 if tf32 else 0.0
        )
    matrix = operation in ("matmul", "convolution", "attention")
    return Arithmetic(dtype, truncates=matrix, roundings=ON_ACCELERATORS)


def _reads_tf32(operation: str) -> bool:
    """Whether FP32 operands may be read as TF32; torch allows it for convolutions unless told not to."""
    if operation not in ("matmul", "convolution", "attention"):
        return False
    settings = torch.backends.cudnn if operation == "convolution" else torch.backends.cuda.matmul
    try:
        allowed = bool(settings.allow_tf32)
    except RuntimeError:  # set through torch's newer interface, which the older one refuses to read
        return True
    return allowed
