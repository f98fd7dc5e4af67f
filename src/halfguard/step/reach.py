"""Everything that a loss function can reach: the state that a step reads and may change.

The search begins at the model and the loss function, and follows attributes, entries of containers, variables
of enclosing functions, and the globals that functions of the user name. Functions and classes of installed
packages are not followed, objects of such classes are. Left out are loaders, optimizers, loggers, files,
threads, and whatever holds a lock or a file.
"""

from __future__ import annotations

import array
import functools
import io
import logging
import os
import random
import socket
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.step.holders import (
    OWN_OF_MODULES,
    ArrayHolder,
    CellHolder,
    ClassHolder,
    DictHolder,
    Holder,
    IteratorHolder,
    ListHolder,
    SetHolder,
    SlotsHolder,
    VariableHolder,
)
from halfguard.step.nested import PLAIN, slots_of

MAX_OBJECTS = 20_000
_WIDEST = 1_000  # entries of one container that are followed
_LARGEST_ARRAY = 2**26  # bytes: a larger one is data
_CLOSED_PACKAGES = (
    *(
        "halfguard",
        "torch.utils.data",
        "torch.optim",
        "torch.distributed",
        "torch._dynamo",
        "torch.cuda",
    ),
    *("torch.fx", "torch._C", "logging", "threading", "concurrent", "multiprocessing", "asyncio"),
    *("subprocess", "weakref", "re", "tqdm", "lightning", "pytorch_lightning", "accelerate"),
)
_HANDLES = (
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Thread,
    io.IOBase,
    socket.socket,
)
_CLOSED = (*_HANDLES, logging.Logger, Enum, torch.optim.Optimizer, BuiltinFunctionType, memoryview)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")

Entry = tuple[str, Any, Any, Any]  # name, value, and where it is: a dict and a key, or None


@dataclass
class Reached:
    """What was reached, each object once: holders, tensors with their places, random generators."""

    holders: list[Holder] = field(default_factory=list)
    tensors: list[tuple[str, Tensor, Any, Any]] = field(default_factory=list)
    generators: list[Any] = field(default_factory=list)


def reach(roots: Iterable[tuple[str, Any]], max_objects: int = MAX_OBJECTS) -> Reached:
    """Return everything that can be reached from the named roots, the nearest first."""
    reached = Reached()
    seen: dict[int, Any] = {}  # holds the objects, so that no other one gets their ids
    by_namespace: dict[int, DictHolder] = {}  # globals are shared by many functions
    waiting: deque[Entry] = deque((name, value, None, None) for name, value in roots)
    while waiting and len(seen) < max_objects:
        name, value, owner, key = waiting.popleft()
        if type(value) in PLAIN or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, Tensor):
            reached.tensors.append((name, value, owner, key))
        elif isinstance(value, _generator_kinds()):
            reached.generators.append(value)
            continue
        try:
            holders, links = _open(name, value)
        except Exception:  # noqa: BLE001, S112 - code of the value's class
            continue
        waiting.extend((link, item, None, None) for link, item in links)
        for holder in holders:
            known = by_namespace.get(id(holder.target)) if isinstance(holder, DictHolder) else None
            if isinstance(holder, DictHolder) and holder.keys is not None:
                if known is not None:
                    known.keys = (known.keys or frozenset()) | holder.keys
                else:
                    by_namespace[id(holder.target)] = holder
            if known is None:
                reached.holders.append(holder)
            where = holder.target if isinstance(holder, DictHolder) else None
            waiting.extend(
                (link, item, where, k) for link, k, item in islice(holder.entries(), _WIDEST)
            )
    return reached


def _open(name: str, value: Any) -> tuple[list[Holder], list[tuple[str, Any]]]:
    """Return the holders of an object, and what else it leads to."""
    if isinstance(value, nn.Module):
        return _open_module(name, value)
    if isinstance(value, FunctionType):
        return _open_function(value) if is_users(value.__module__) else ([], [])
    if isinstance(value, MethodType):
        owner = value.__self__
        return [], [(name if callable(owner) else "self", owner), (name, value.__func__)]
    if isinstance(value, functools.partial):
        arguments = [(name, item) for item in value.args]
        return [DictHolder(name, value.keywords)], [(name, value.func), *arguments]
    if isinstance(value, staticmethod | classmethod):
        return [], [(name, value.__func__)]
    if isinstance(value, property):
        return [], [(name, part) for part in (value.fget, value.fset) if part is not None]
    if isinstance(value, type):
        return ([ClassHolder(value.__name__, value)] if is_users(value.__module__) else []), []
    if isinstance(value, (*_CLOSED, ModuleType)):
        return [], []
    container = _open_container(name, value)
    return ([container], []) if container is not None else _open_object(name, value)


def _open_container(name: str, value: Any) -> Holder | None:
    if isinstance(value, dict):
        return DictHolder(name, value)
    if isinstance(value, list | deque | bytearray | array.array):
        return ListHolder(name, value)
    if isinstance(value, set):
        return SetHolder(name, value)
    if isinstance(value, ContextVar):
        return VariableHolder(name, value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        usable = value.nbytes <= _LARGEST_ARRAY and value.flags.writeable
        return ArrayHolder(name, value) if usable else None
    users = is_users(type(value).__module__)
    return IteratorHolder(name, value) if isinstance(value, Iterator) and not users else None


def _open_object(name: str, value: Any) -> tuple[list[Holder], list[tuple[str, Any]]]:
    kind: Any = type(value)
    links = (
        [(f"{name}[{i}]", item) for i, item in enumerate(value)] if isinstance(value, tuple) else []
    )
    own = getattr(value, "__dict__", None)
    if kind.__module__.startswith(_CLOSED_PACKAGES) or (isinstance(own, dict) and _has_handle(own)):
        return [], links
    holders: list[Holder] = []
    if isinstance(own, dict) and (own or not isinstance(value, Tensor)):
        holders.append(DictHolder(name, own, style="{}.{}"))
    if slots_of(kind):
        holders.append(SlotsHolder(name, value))
    links += [(base.__name__, base) for base in kind.__mro__ if is_users(base.__module__)]
    return holders, links


def _has_handle(own: dict[str, Any]) -> bool:
    return any(isinstance(item, _HANDLES) for item in own.values())


def attributes_and_buffers(name: str, module: nn.Module) -> list[DictHolder]:
    """Return the holders of a module's own attributes and of its buffers."""
    own = DictHolder(name, vars(module), style="{}.{}", left_out=OWN_OF_MODULES)
    return [own, DictHolder(name, module._buffers, style="{}.{}")]


def _open_module(name: str, module: nn.Module) -> tuple[list[Holder], list[tuple[str, Any]]]:
    links: list[tuple[str, Any]] = [
        (f"{name}.{child}", part) for child, part in module._modules.items()
    ]
    if type(module).__module__.startswith(_CLOSED_PACKAGES):  # a wrapper
        return [], links
    weights = DictHolder(name, module._parameters, style="{}.{}")
    holders: list[Holder] = [*attributes_and_buffers(name, module), weights]
    for hooks in _HOOKS:
        links += [(f"a hook of {name}", hook) for hook in vars(module).get(hooks, {}).values()]
    links += [(base.__name__, base) for base in type(module).__mro__ if is_users(base.__module__)]
    return holders, links


def _open_function(function: FunctionType) -> tuple[list[Holder], list[tuple[str, Any]]]:
    code = function.__code__
    holders: list[Holder] = [
        CellHolder(variable, cell)
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
    ]
    names = frozenset(_names_in(code))
    known = function.__globals__
    modules = [known[n] for n in names if isinstance(known.get(n), ModuleType)]
    for space in (known, *(vars(module) for module in modules if is_users(module.__name__))):
        holders.append(DictHolder("", space, style="{}{}", keys=names.intersection(space)))
    holders.append(DictHolder(function.__name__, vars(function), style="{}.{}"))
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return holders, [(f"a default of {function.__name__}", value) for value in defaults]


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


@functools.lru_cache(maxsize=4096)
def is_users(module: str | None) -> bool:
    """Return whether a module is the user's own: neither installed nor of Python itself."""
    if module is None or module.startswith("halfguard."):
        return False
    if module in sys.builtin_module_names or module in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" or file is None:
        return module.partition(".")[0] not in sys.stdlib_module_names
    return not os.path.realpath(file).startswith(_installed())


@functools.cache
def _installed() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in names})


def _generator_kinds() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy")
    own = () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
    return (torch.Generator, random.Random, *own)
