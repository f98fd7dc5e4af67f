"""CUDA's autocast rules as kernels for CPU tensors, registered in place of CPU autocast's own.

Autocast is a key of torch's dispatcher, above autograd. A kernel registered there sees every operation,
also those that a composite operation calls in C++, and its casts are part of the graph. So one Python
kernel per operation, under the key AutocastCPU, is enough. It checks whether CUDA's autocast is enabled
in this thread. If so, it applies CUDA's rule; otherwise it calls the previous kernel. Nothing else about
CPU autocast changes.

Casts of FP32 parameters are cached until the outermost autocast region ends, as in torch. This affects
results: all uses of a weight share one half copy, and their gradients are summed in half.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from halfguard.autocast_ops import CUDNN_RNN, RULES, AutocastRule
from halfguard.errors import UsageError

_KEY = "AutocastCPU"
_KEYSET = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_AFTER = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.AutocastCPU)
_BANNED = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: CUDA raises an "
    "error because their gradient may overflow float16. Use binary_cross_entropy_with_logits, or "
    "BCEWithLogitsLoss."
)

Apply = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class _CastCache(threading.local):
    """Half copies of parameters by id, for the current outermost autocast region of one thread."""

    def __init__(self) -> None:
        self.copies: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def get(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        source, copy = self.copies.get(id(tensor), (None, None))
        if source is None or copy is None or source() is not tensor or copy.dtype is not dtype:
            copy = tensor.to(dtype)
            self.copies[id(tensor)] = weakref.ref(tensor), copy
        return copy


_cast_cache = _CastCache()


def clear_cast_cache() -> None:
    """Drop the half copies of this thread when its outermost autocast region ends."""
    _cast_cache.copies.clear()


@contextmanager
def registered() -> Iterator[None]:
    """Register the kernels for the block; they change nothing unless CUDA's autocast is enabled."""
    kernels = _kernels()
    library = torch.library.Library("aten", "IMPL", _KEY)  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about every kernel that is replaced
        for name, kernel in kernels.items():
            library.impl(name, kernel, with_keyset=True, allow_override=True)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        del library  # its kernels go with it


@cache
def _kernels() -> dict[str, Callable[..., Any]]:
    if not hasattr(torch.library, "get_kernel"):
        raise UsageError(
            f"emulate_autocast needs torch.library.get_kernel, which torch {torch.__version__} "
            "does not have.",
            cure="Run: pip install --upgrade torch",
        )
    known = torch._C._dispatch_get_registrations_for_dispatch_key(_KEY)
    cpu = {name.removeprefix("aten::") for name in known if name.startswith("aten::")}
    names = sorted(cpu | RULES.keys() | CUDNN_RNN)
    return {name: _kernel(name, replaces=name in cpu) for name in names}


def _kernel(name: str, *, replaces: bool) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
    previous = torch.library.get_kernel(f"aten::{name}", _KEY) if replaces else None
    rule = AutocastRule.LOWER if name in CUDNN_RNN else RULES.get(name)
    apply = None if rule is None else _APPLY[rule]

    def kernel(keyset: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        emulating = torch.is_autocast_enabled("cuda")
        if emulating and apply is not None:
            with torch._C._ExcludeDispatchKeyGuard(_KEYSET):
                return apply(operation, args, kwargs)
        if previous is not None and not emulating:
            return previous.call_boxed(keyset, *args, **kwargs)
        # No rule for this operation, but the operations it calls may have one: skip only this call. The keys
        # above autocast have been passed; under torch.compile one of them would lead back to this kernel.
        return operation.redispatch(keyset & _AFTER, *args, **kwargs)

    return kernel


def _lower(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _cast_and_run(operation, args, kwargs, torch.get_autocast_dtype("cuda"))


def _fp32(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _cast_and_run(operation, args, kwargs, torch.float32)


def _widest(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dtypes = {tensor.dtype for tensor in _eligible_in((*args, *kwargs.values()))}
    lower = torch.get_autocast_dtype("cuda")
    dtype = torch.float32 if torch.float32 in dtypes else lower
    return _cast_and_run(operation, args, kwargs, dtype)


def _fp32_accumulate(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not _eligible(args[0]):
        return operation(*args, **kwargs)
    names = [argument.name for argument in operation._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.get("dtype") is None:
        given["dtype"] = torch.float32
    first = given.pop(names[0])
    return operation(first, **given)


def _fp32_norm(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not _eligible(args[0]):
        return operation(*args, **kwargs)
    names = [argument.name for argument in operation._schema.arguments]
    given = {"p": 2, "dim": [], "keepdim": False} | dict(zip(names, args, strict=False)) | kwargs
    p = 2 if given["p"] is None else given["p"]
    if not given["dim"]:
        return torch.ops.aten.norm.ScalarOpt_dtype(args[0], p, dtype=torch.float32)
    norm = torch.ops.aten.norm.ScalarOpt_dim_dtype
    return norm(args[0], p, given["dim"], given["keepdim"], dtype=torch.float32)


def _banned(*_: object) -> Any:
    raise RuntimeError(_BANNED)  # RuntimeError, as CUDA's


_APPLY: dict[AutocastRule, Apply] = {
    AutocastRule.LOWER: _lower,
    AutocastRule.FP32: _fp32,
    AutocastRule.FP32_ACCUMULATE: _fp32_accumulate,
    AutocastRule.FP32_NORM: _fp32_norm,
    AutocastRule.WIDEST: _widest,
    AutocastRule.BANNED: _banned,
}


def _cast_and_run(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype
) -> Any:
    cast = {name: _cast(value, dtype) for name, value in kwargs.items()}
    return operation(*(_cast(value, dtype) for value in args), **cast)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, list | tuple):
        return [_cast(item, dtype) for item in value]
    if not _eligible(value) or value.dtype is dtype:
        return value
    is_parameter = value.requires_grad and value.is_leaf and not value._is_view()
    lowered = value.dtype is torch.float32 and dtype is not torch.float32
    # A copy made without gradients must not be reused where gradients are needed.
    if is_parameter and lowered and torch.is_grad_enabled() and torch.is_autocast_cache_enabled():
        return _cast_cache.get(value, dtype)
    return value.to(dtype)


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.device.type == "cpu"
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


def _eligible_in(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _eligible_in(value)
        elif _eligible(value):
            yield value
