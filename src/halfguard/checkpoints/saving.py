"""``save_checkpoint``: write a checkpoint that is whole and finite, or write nothing.

The state is checked before anything is written. Then the new file is written beside the old one, read back
and checked again, since only the content of the file itself is certain. Only then it replaces the old one.
"""

from __future__ import annotations

import contextlib
import glob
import os
import time
import warnings
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from halfguard import formats
from halfguard.checkpoints.collecting import CollectedState, collect_state, replace_tensors
from halfguard.dist.collectives import all_gather_object, rank, run_on_all
from halfguard.dist.wrapping import full_tensor, is_dtensor
from halfguard.errors import HalfguardError, PoisonedStateError, UsageError
from halfguard.numerics.finite import Poison, find_poison
from halfguard.records.atomic_write import write_atomically

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def save_checkpoint(
    path: str | os.PathLike[str],
    state: Any,
    *,
    dtype: torch.dtype | None = None,
    allow_infinite: Iterable[str] = (),
) -> None:
    """Save ``state`` to ``path``, or raise an error and keep the existing file if a value is not finite.

    ``state`` is a model, or a mapping like ``{"model": model, "ema": ema, "optimizer": optimizer, "epoch":
    3}``. Objects with a ``state_dict()`` method are saved as its result. The file can be read with
    ``torch.load(path, weights_only=True)``. Prefixes from DDP and torch.compile are removed from the names
    of weights.

    A ``PoisonedStateError`` names every tensor that contains NaN, Inf, or a value too large for ``dtype``.
    ``dtype`` stores all floating-point tensors in another format, for evaluation. ``allow_infinite`` lists
    name patterns of tensors in which Inf is intended, such as ``"model.*.mask"``.

    With several ranks, rank 0 writes the file, and only rank 0 needs to call this function. If a tensor is a
    DTensor (FSDP2, tensor parallelism), every rank must call it. The tensors are then gathered, and all
    ranks return or raise an error together.
    """
    write_state(Path(path), collect_state(state), dtype=dtype, allow_infinite=allow_infinite)


def write_state(
    path: Path,
    state: CollectedState,
    *,
    dtype: torch.dtype | None,
    allow_infinite: Iterable[str],
) -> None:
    """Check a collected state and write it, as ``save_checkpoint`` does."""
    check_dtype(dtype, state)
    patterns = tuple(allow_infinite)
    target = None if dtype is None else formats.for_dtype(dtype)
    device = state.sharded_over
    if device is None and rank() != 0:
        return
    found = find_poison(state.tensors, state.numbers, target=target, allow_infinite=patterns)
    if device is None:
        _raise_if_poisoned(path, found)
        _write(path, _to_dtype(state.content, dtype), patterns)
        return
    everywhere = all_gather_object([asdict(poison) for poison in found])
    _raise_if_poisoned(path, _merge(everywhere))
    content = _to_dtype(replace_tensors(state.content, _gather), dtype)
    _, errors = run_on_all(lambda: _write(path, content, patterns) if rank() == 0 else None, device)
    if errors:
        raise HalfguardError(f"The checkpoint {path} was not written. {'; '.join(errors[:3])}.")


def check_dtype(dtype: torch.dtype | None, state: CollectedState) -> None:
    """Raise a UsageError if ``dtype`` is no storage format, or if the state needs its own dtypes."""
    if dtype is None:
        return
    if dtype not in _DTYPES:
        raise UsageError(
            f"A checkpoint cannot be stored as {dtype}.",
            cure=(
                f"Allowed: {', '.join(map(str, _DTYPES))}, or None to keep the dtype of each "
                "tensor."
            ),
        )
    if state.has_optimizer and dtype is not torch.float32:
        raise UsageError(
            f"The state contains an optimizer, which cannot be stored as {dtype}: its small values would "
            "become 0, and a run resumed from it would diverge.",
            cure="Save two files: one with dtype but without the optimizer, for evaluation; one "
            "without dtype, to resume training.",
        )


def _write(path: Path, content: Any, allow_infinite: tuple[str, ...]) -> None:
    def write_and_verify(file: BinaryIO) -> None:
        lock_while_writing(file)
        torch.save(content, file)
        file.flush()
        _verify(path, file.name, allow_infinite)

    path = Path(os.path.realpath(path))  # temporary files are where a link leads to
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(path)
    write_atomically(path, write_and_verify)


def _verify(path: Path, written: str, allow_infinite: tuple[str, ...]) -> None:
    """Read a file back as a user's script would, and check every value in it."""
    try:
        with warnings.catch_warnings():  # torch 2.15 warns that it validates sparse tensors
            warnings.simplefilter("ignore")
            content = torch.load(written, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise UsageError(
            f"{path} was not written: torch.load(weights_only=True) cannot read it back. "
            f"{str(error).splitlines()[0]}",
            cure="Save only tensors, numbers, strings, lists and dicts.",
        ) from error
    read = collect_state(content)
    _raise_if_poisoned(path, find_poison(read.tensors, read.numbers, allow_infinite=allow_infinite))


def _to_dtype(content: Any, dtype: torch.dtype | None) -> Any:
    if dtype is None:
        return content
    converted: dict[Any, Tensor] = {}

    def convert(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.dtype is dtype:
            return tensor
        if not tensor.numel() or tensor.layout is not torch.strided:
            return tensor.to(dtype)
        # Tied weights are one tensor in the file, as they were in memory.
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in converted:
            converted[key] = tensor.to(dtype)
        return converted[key]

    return replace_tensors(content, convert)


def _gather(tensor: Tensor) -> Tensor:
    """Gather a DTensor; rank 0 keeps it, on the host. Every rank must call this."""
    if not is_dtensor(tensor):
        return tensor
    full = full_tensor(tensor)
    return full.cpu() if rank() == 0 else full.new_empty(0)


def _merge(ranks: list[list[dict[str, Any]]]) -> list[Poison]:
    """Return one entry for each name: the shards of a tensor are added up."""
    merged: dict[str, Poison] = {}
    for found in (Poison(**entry) for entries in ranks for entry in entries):
        known = merged.get(found.name)
        merged[found.name] = found if known is None else known.plus(found)
    return list(merged.values())


def _raise_if_poisoned(path: Path, found: list[Poison]) -> None:
    if not found:
        return
    shown = ", ".join(map(str, found[:5])) + (
        f" and {len(found) - 5} more" if len(found) > 5 else ""
    )
    kept = f"the earlier {path} is unchanged" if path.exists() else f"{path} does not exist"
    raise PoisonedStateError(
        "The state contains values that are NaN, Inf or too large for the format of the file: "
        f"{shown}. Nothing was written; {kept}.",
        names=tuple(poison.name for poison in found),
        cure=" ".join(_advice(found)),
    )


def _advice(found: list[Poison]) -> list[str]:
    """Return a sentence for each kind of poison."""
    advice = []
    broken = [poison for poison in found if poison.nan or poison.infinite]
    if any(poison.overflow for poison in found):
        advice.append(
            "For values that exceed the format, save without dtype or with dtype=torch.bfloat16."
        )
    if broken:
        advice.append(
            "NaN or Inf means that training has already failed. Load the last good checkpoint and train "
            "with halfguard.Guard, which skips such steps. To find the operation, use "
            "halfguard.find_first_nonfinite."
        )
    if broken and not any(poison.nan for poison in found):
        advice.append(
            "If Inf is intended, as in a mask, pass allow_infinite=[" + f'"{broken[0].name}"].'
        )
    return advice


try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_YOUNG = 60.0  # seconds: its writer may not have locked it yet


def lock_while_writing(file: BinaryIO) -> None:
    """Mark an open file as being written; the system ends this with the process."""
    with contextlib.suppress(OSError):  # some systems and network file systems have no locks
        lock(file.fileno())


def remove_unfinished(path: Path) -> None:
    """Remove temporary files of ``path`` that no living process writes; where this is unknown, keep them."""
    # The names that records.atomic_write gives them.
    for left in path.parent.glob(f".{glob.escape(path.name[:40])}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime < _YOUNG:
                continue
            with left.open("rb") as file:
                lock(file.fileno())  # raises if it is being written
                left.unlink()


def lock(file: int) -> None:
    """Lock an open file, given by its descriptor; raise a BlockingIOError if another process has it."""
    if fcntl is None:
        raise OSError("flock is not available on this system")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
