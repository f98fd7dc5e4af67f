"""The operation that made the first bad number, kept with its inputs, and run again in other precisions.

``operation.json`` names an operation of torch and its arguments; ``operation.safetensors`` holds the tensors
among them. Nothing is pickled. The files are not trusted: ``allowed_operations`` says what is run, and a file
that asks for anything else is refused.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from halfguard.errors import RecordError
from halfguard.incident.encoding import can_be_stored, decode, encode
from halfguard.records import write_atomically
from halfguard.records.base import Record
from halfguard.records.script_answer import OperationRun
from halfguard.replaying.allowed_operations import reason_to_refuse, without_writing
from halfguard.tracing.call_arguments import tensors_in

OPERATION_FILE, INPUTS_FILE = "operation.json", "operation.safetensors"
MAX_BYTES = 64 * 2**20  # of all inputs
_MAX_RECORD_BYTES = 2**20
_PRECISIONS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_USUAL = (torch.float16, torch.float32, torch.float64)
_COMPLEX = {
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}
_SETTINGS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


class KeptOperation(Record):
    """An operation of torch, and its arguments; tensors are names in the file beside it."""

    kind: ClassVar[str] = "operation"

    name: str
    overload: str
    arguments: Any
    dtype: str


def size_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the bytes of the tensors among the arguments of a call."""
    values = (*args, *kwargs.values())
    return sum(t.numel() * t.element_size() for value in values for t in tensors_in(value))


def can_be_kept(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call can be run again from a file: it is allowed, and its inputs are not large."""
    values = [t for value in (*args, *kwargs.values()) for t in tensors_in(value)]
    fits = all(can_be_stored(t.dtype) and t.layout is torch.strided for t in values)
    small = fits and size_of(args, kwargs) <= MAX_BYTES
    return small and not reason_to_refuse(without_writing(func), args, kwargs)


def keep_operation(
    folder: Path, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: str
) -> bool:
    """Write an operation into the folder of an incident; return False if it could not be run from there."""
    if not can_be_kept(func, args, kwargs):
        return False
    func = without_writing(func)
    given = {"args": [_plain(value) for value in args]}
    given["kwargs"] = [[name, _plain(value)] for name, value in kwargs.items()]
    body, tensors, problems = encode(given, "input")
    if problems:
        return False
    save_file(
        {name: t.cpu().clone().contiguous() for name, t in tensors.items()}, folder / INPUTS_FILE
    )
    record = KeptOperation(
        name=func.overloadpacket.__name__,
        overload=func._overloadname,
        arguments=body,
        dtype=dtype,
    )
    write_atomically(folder / OPERATION_FILE, record.to_json())
    return True


def run_kept_operation(folder: Path) -> tuple[OperationRun, ...]:
    """Run the operation of a folder in float16, float32, float64 and as it ran; empty if there is none."""
    if not _is_regular(folder / OPERATION_FILE, _MAX_RECORD_BYTES):
        return ()
    record = KeptOperation.from_json((folder / OPERATION_FILE).read_bytes())
    func = _resolve(record)
    args, kwargs = _arguments(folder, record)
    where = f"{folder / OPERATION_FILE} names aten::{record.name}"
    why = reason_to_refuse(func, args, kwargs)
    if why:
        raise RecordError(f"{where}, which is not run: {why}.")
    ran = getattr(torch, record.dtype, None)
    wanted = [one for one in _PRECISIONS if one in _USUAL or one is ran]
    runs = tuple(_run(func, args, kwargs, one, as_it_ran=one is ran) for one in wanted)
    if all(run.note for run in runs):
        raise RecordError(f"{where}, which fails with the inputs in the folder: {runs[-1].note}.")
    return runs


def _resolve(record: KeptOperation) -> Any:
    packet = getattr(torch.ops.aten, record.name, None) if record.name.isidentifier() else None
    func = getattr(packet, record.overload, None) if record.overload.isidentifier() else None
    if not isinstance(func, torch._ops.OpOverload):
        raise RecordError(f"This torch has no operation aten::{record.name}.{record.overload}.")
    return without_writing(func)


def _arguments(folder: Path, record: KeptOperation) -> tuple[list[Any], dict[str, Any]]:
    path = folder / INPUTS_FILE
    if not _is_regular(path, 2 * MAX_BYTES):
        raise RecordError(f"{path} is missing: the operation has no inputs.")
    try:
        given = decode(record.arguments, load_file(path))
        args, kwargs = list(given["args"]), dict(given["kwargs"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(
            f"The inputs of the operation in {folder} cannot be read: {error}."
        ) from error
    return [_torch(value) for value in args], {
        name: _torch(value) for name, value in kwargs.items()
    }


def _is_regular(path: Path, most: int) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    if not stat.S_ISREG(found.st_mode) or found.st_size > most:
        raise RecordError(f"{path} is not a regular file of at most {most} bytes.")
    return True


def _run(
    func: Any, args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype, *, as_it_ran: bool
) -> OperationRun:
    """Run the operation with its floating inputs in one dtype; as they were kept, if it ran so."""
    name = str(dtype).removeprefix("torch.")
    try:
        new_args, new_kwargs = (args, kwargs) if as_it_ran else _cast([args, kwargs], dtype)
        with torch.no_grad():
            results = list(tensors_in(func(*new_args, **new_kwargs)))
        return _measured(results, name, as_it_ran=as_it_ran)
    except Exception as error:  # noqa: BLE001 - a kernel without a form in this dtype
        return OperationRun(
            precision=name, as_it_ran=as_it_ran, note=" ".join(str(error).split())[:120]
        )


def _measured(results: list[Tensor], name: str, *, as_it_ran: bool) -> OperationRun:
    parts = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in results]
    floats = [t.double().flatten() for t in parts if t.is_floating_point() and t.numel()]
    if not floats:
        raise RecordError("The result has no floating-point numbers")
    values = torch.cat(floats)
    finite = values[values.isfinite()]
    low, high = torch.aminmax(finite) if finite.numel() else (torch.tensor(math.nan),) * 2
    return OperationRun(
        precision=name,
        as_it_ran=as_it_ran,
        low=float(low),
        high=float(high),
        not_finite=values.numel() - finite.numel(),
        elements=values.numel(),
    )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        wanted = _COMPLEX.get(dtype, value.dtype) if value.is_complex() else dtype
        return value.to(wanted) if value.is_floating_point() or value.is_complex() else value
    if isinstance(value, torch.dtype):
        return dtype if value.is_floating_point else value
    if isinstance(value, dict):
        return {name: _cast(item, dtype) for name, item in value.items()}
    return [_cast(item, dtype) for item in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """Return an argument as the encoding knows it; settings of torch by their names."""
    for kind, known in _SETTINGS.items():
        if isinstance(value, known):
            return {"torch": kind, "name": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"torch": "device", "name": "cpu"}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _torch(value: Any) -> Any:
    """Return an argument from a file as torch takes it."""
    if isinstance(value, list):
        return [_torch(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str | Tensor):
        return value
    kind = value.get("torch") if isinstance(value, dict) else None
    if kind == "device":
        return torch.device("cpu")
    found = getattr(torch, str(value.get("name")), None) if kind else None
    if not isinstance(found, _SETTINGS.get(str(kind), ())):
        raise RecordError("An argument of the operation is damaged.")
    if isinstance(found, torch.layout) and found is not torch.strided:
        raise RecordError(f"The operation asks for the layout {found}, which is not run.")
    return found


def describe_contents(folder: Path, tensors: Sequence[str]) -> Iterator[str]:
    """Yield what the folder of an incident without an ENTRY has, and what was done with it."""
    batch = sum(name.startswith("batch.") for name in tensors)
    weights = sum(name.startswith("model.") for name in tensors)
    yield (
        f"The folder has the answer, {batch} tensors of the batch and {weights} of the weights, but not the "
        "code of the script, so the whole step was not run again. With --entry it can be."
    )
    if not (folder / OPERATION_FILE).exists():
        yield (
            "The inputs of the operation were not kept: only operations of torch that compute numbers from "
            f"tensors, draw no random ones and have inputs of up to {MAX_BYTES // 2**20} MiB are."
        )
