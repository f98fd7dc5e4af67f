"""The parity self-test: compare operations in each format with float64, on this device, at realistic sizes.

Some devices pass every small test and give NaN in training: the GTX 16 series is the known case. So
operations run at the size of real layers and at the user's batch size. The whole output must be finite, and a
part of it is compared with float64 within the limits of ``bounds``. The operations are a parameter, so that
tests can insert a faulty one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from halfguard.diagnosis.parity.cases import (
    ACCELERATOR_ROUNDINGS,
    CASES,
    OPERATIONS,
    Arithmetic,
    Operations,
    Tensors,
)
from halfguard.records.machine import ParityRow
from halfguard.workload.user_error import is_out_of_memory

FORMATS = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}
BATCH_SIZE = 16  # on an accelerator
BATCH_SIZE_ON_CPU = 4  # a processor is slow, and rarely wrong


def run_selftest(
    device: torch.device | str = "cpu",
    batch_size: int | None = None,
    operations: Operations = OPERATIONS,
    seed: int = 0,
) -> Iterator[ParityRow]:
    """Yield a row for every operation in every format."""
    device = torch.device(device)
    batch = batch_size or (BATCH_SIZE_ON_CPU if device.type == "cpu" else BATCH_SIZE)
    for name, operation in operations.items():
        data = CASES[name].make(batch, torch.Generator().manual_seed(seed))
        for precision in FORMATS:
            yield _test_operation(name, operation, precision, data, device)


def _test_operation(
    name: str, operation: Callable[..., Tensor], precision: str, data: Tensors, device: torch.device
) -> ParityRow:
    """Test one operation in one format; on out of memory, repeat with half the batch."""
    case, dtype = CASES[name], FORMATS[precision]
    inputs = tuple(x.to(dtype) for x in data)
    try:
        arithmetic = device_arithmetic(name, device, dtype)
        error, detail = _compare(name, operation, inputs, device, arithmetic)
    except _BatchTooLargeError:
        half = len(data[0]) // 2
        fewer = tuple(
            x[:half] if part else x for x, part in zip(data, case.selectable, strict=True)
        )
        return _test_operation(name, operation, precision, fewer, device)
    return ParityRow(
        operation=name,
        precision=precision,
        size=" by ".join(str(list(x.shape)) for x in inputs),
        error=error,
        detail=detail,
    )


class _BatchTooLargeError(Exception):
    """The batch does not fit into memory, and has more than one sample."""


def _compare(
    name: str,
    operation: Callable[..., Tensor],
    inputs: Tensors,
    device: torch.device,
    arithmetic: Arithmetic,
) -> tuple[float, str]:
    case, batch = CASES[name], inputs[0].shape[0]
    with torch.no_grad():
        try:
            output = operation(*(x.to(device) for x in inputs))
        except RuntimeError as failure:  # no kernel, or out of memory
            if is_out_of_memory(failure) and batch > 1:
                raise _BatchTooLargeError from failure
            return math.inf, str(failure).strip().splitlines()[0]
        nonfinite = output.numel() - int(output.isfinite().sum())
        if nonfinite:
            return math.inf, f"{nonfinite} of {output.numel()} elements are NaN or Inf"
        selected = tuple(
            (case.select(x, batch) if part else x).double()
            for x, part in zip(inputs, case.selectable, strict=True)
        )
        exact = OPERATIONS[name](*selected)
        bound = case.bound(selected, exact, arithmetic)
        actual = case.select(output, batch).cpu().double()
        error = float(((actual - exact).abs() / bound).max())
    return error, "" if error <= 1 else f"the error is {error:.3g} times the rounding bound"


def device_arithmetic(operation: str, device: torch.device, dtype: torch.dtype) -> Arithmetic:
    """Return the assumed rounding behaviour of a device in an operation."""
    if device.type == "cpu":
        return Arithmetic(dtype)
    if dtype == torch.float32:
        tf32 = device.type == "cuda" and _uses_tf32(operation)
        return Arithmetic(
            dtype, roundings=ACCELERATOR_ROUNDINGS, input_roundoff=2.0**-11 if tf32 else 0.0
        )
    matrix = operation in ("matmul", "convolution", "attention")
    return Arithmetic(dtype, truncates=matrix, roundings=ACCELERATOR_ROUNDINGS)


def _uses_tf32(operation: str) -> bool:
    """Return whether FP32 operands may be read as TF32; torch allows it for convolutions by default."""
    if operation not in ("matmul", "convolution", "attention"):
        return False
    settings = torch.backends.cudnn if operation == "convolution" else torch.backends.cuda.matmul
    try:
        allowed = bool(settings.allow_tf32)
    except RuntimeError:  # set through torch's newer interface, so reading allow_tf32 raises
        return True
    return allowed
