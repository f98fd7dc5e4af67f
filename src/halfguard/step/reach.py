"""Everything that a loss function can reach: the state that a step reads and may change.

The search begins at the model and the loss function, and follows attributes, entries of containers, variables
of enclosing functions, and the globals that functions of the user name. Functions and classes of installed
packages are not followed, objects of such classes are. Left out are loaders, loggers, files, locks, and
objects with a thread.
"""

from __future__ import annotations

import array
import dis
import functools
import io
import logging
import os
import random
import socket
import sqlite3
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor, nn

from halfguard.step.holders import (
    OWN_OF_MODULES,
    ArrayHolder,
    BytesHolder,
    CellHolder,
    ClassHolder,
    ConnectionHolder,
    DictHolder,
    Holder,
    IteratorHolder,
    ListHolder,
    Name,
    SetHolder,
    SlotsHolder,
    VariableHolder,
    WeakDictHolder,
)
from halfguard.step.installed import PACKAGE_FOLDERS
from halfguard.step.nested import PLAIN, slots_of

MAX_OBJECTS = 20_000  # from each root
_WIDEST = 1_000  # entries of one container that are followed
_ARRAY_BYTES = 2**26  # of all NumPy arrays together: the rest is data
_CLOSED_PACKAGES = frozenset({
    "halfguard", "torch.utils.data", "torch.nn.parallel", "torch.distributed", "torch._dynamo",
    "torch.cuda", "torch.fx", "torch.jit", "logging", "threading", "concurrent", "multiprocessing",
    "asyncio", "subprocess", "weakref", "re", "tqdm", "lightning", "pytorch_lightning", "accelerate",
})  # fmt: skip
# Packages whose functions are followed by nobody, even if one of them is the loss function.
_LIBRARIES = frozenset(
    {"torch", "transformers", "trl", "peft", "diffusers", "timm", "lightning", "accelerate"}
)
_HANDLES = (
    *(type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event),
    *(io.IOBase, socket.socket, logging.Logger),
)
_CLOSED = (*_HANDLES, threading.Thread, Enum, memoryview)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
_MAKING = frozenset({"__init__", "__new__", "__post_init__"})  # what they assign may stay
_ATTRIBUTE, _VARIABLE = "{}.{}", "{1}"  # how names are written

Opened = tuple[list[Holder], list[tuple[Name, Any]]]


@dataclass
class Reached:
    """What was reached, each object once: holders, tensors with their places, random generators.

    The place of a tensor is a dict and a key, or None and None.
    """

    holders: list[Holder] = field(default_factory=list)
    tensors: list[tuple[Name, Tensor, Any, Any]] = field(default_factory=list)
    generators: list[Any] = field(default_factory=list)


def reach(
    roots: Iterable[tuple[str, Any]], max_objects: int = MAX_OBJECTS, closed: Iterable[Any] = ()
) -> Reached:
    """Return everything that can be reached from the named roots, but not through ``closed`` objects."""
    search = _Search(roots := list(roots), closed)
    for name, value in roots:
        search.follow(name, value, max_objects)
    search.mark_assigned()
    return search.reached


class _Search:
    """A search in progress."""

    def __init__(self, roots: list[tuple[str, Any]], closed: Iterable[Any]) -> None:
        self.reached = Reached()
        # Holds the objects, so that no other one gets their ids.
        self._seen: dict[int, Any] = {id(value): value for value in closed}
        self._spaces: dict[int, DictHolder] = {}  # globals are shared by many functions
        self._tensors: dict[int, int] = {}  # their positions among those that were reached
        self._array_bytes = _ARRAY_BYTES
        self._assigned: set[str] = set()  # names of attributes
        # The loss function's own package may be installed.
        functions = (function_of(root) for _, root in roots)
        modules = (
            getattr(f, "__module__", None) for f in functions if not isinstance(f, nn.Module)
        )
        tops = {module.partition(".")[0] for module in modules if isinstance(module, str)}
        self._own = tops - _LIBRARIES - sys.stdlib_module_names - {"builtins"}

    def follow(self, name: Name, value: Any, max_objects: int) -> None:
        """Follow one root."""
        waiting: deque[tuple[Name, Any, Any, Any]] = deque([(name, value, None, None)])
        end = len(self._seen) + max_objects
        while waiting and len(self._seen) < end:
            name, value, owner, key = waiting.popleft()
            if type(value) in PLAIN:
                continue
            if id(value) in self._seen:
                self._note_place(name, value, owner, key)
                continue
            self._seen[id(value)] = value
            try:
                holders, links = self._take(name, value, owner, key)
                waiting.extend((link, item, None, None) for link, item in links)
                for holder in holders:
                    where = holder.target if isinstance(holder, DictHolder) else None
                    waiting.extend(
                        ((holder.name, holder.style, k), item, where, k)
                        for k, item in islice(holder.entries(), _WIDEST)
                    )
            except Exception:  # noqa: BLE001, S112 - code of the value's class; a proxy of nothing
                continue

    def mark_assigned(self) -> None:
        """Mark the attributes of objects that code which was reached assigns; not those of modules."""
        for holder in self.reached.holders:
            if not isinstance(holder, DictHolder) or "_parameters" in holder.target:
                continue
            if holder.is_namespace and holder.keys is None:
                holder.assigned_keys = frozenset(self._assigned.intersection(holder.target))

    def _note_place(self, name: Name, value: Any, owner: Any, key: Any) -> None:
        """Prefer a place in a dict: a weight may have been reached through an optimizer's list first."""
        position = self._tensors.get(id(value))
        if position is not None and owner is not None and self.reached.tensors[position][2] is None:
            self.reached.tensors[position] = name, value, owner, key

    def _take(self, name: Name, value: Any, owner: Any, key: Any) -> Opened:
        if isinstance(value, Tensor):
            self._tensors[id(value)] = len(self.reached.tensors)
            self.reached.tensors.append((name, value, owner, key))
        elif isinstance(value, _generator_kinds()):
            if not isinstance(value, random.SystemRandom):
                self.reached.generators.append(value)
            return [], []
        holders, links = self._open(name, value)
        for holder in holders:
            if not isinstance(holder, DictHolder) or holder.keys is None:
                self.reached.holders.append(holder)
            elif id(holder.target) in self._spaces:
                known = self._spaces[id(holder.target)]
                known.keys = (known.keys or frozenset()) | holder.keys
                known.assigned_keys |= holder.assigned_keys
            else:
                self._spaces[id(holder.target)] = holder
                self.reached.holders.append(holder)
        return holders, links

    def _is_users(self, module: str | None) -> bool:
        return is_users(module) or (
            module is not None and module.partition(".")[0] in self._own and not _is_closed(module)
        )

    def _open(self, name: Name, value: Any) -> Opened:
        """Return the holders of an object, and what else it leads to."""
        if isinstance(value, nn.Module):
            return self._open_module(name, value)
        if isinstance(value, FunctionType):
            return self._open_function(value) if self._is_users(value.__module__) else ([], [])
        if isinstance(value, MethodType):
            return [], [("self", value.__self__), (name, value.__func__)]
        if isinstance(value, BuiltinFunctionType | MethodWrapperType):  # ``numbers.append``
            owner = value.__self__
            return [], [] if isinstance(owner, ModuleType | type) else [(name, owner)]
        if isinstance(value, functools.partial):
            arguments = [(name, item) for item in value.args]
            return [DictHolder(name, value.keywords)], [(name, value.func), *arguments]
        if isinstance(value, staticmethod | classmethod):
            return [], [(name, value.__func__)]
        if isinstance(value, property):
            return [], [(name, part) for part in (value.fget, value.fset) if part is not None]
        if isinstance(value, type):
            return self._open_class(value) if self._is_users(value.__module__) else ([], [])
        if isinstance(value, ModuleType):
            return ([_variables(value)], []) if self._is_users(value.__name__) else ([], [])
        if isinstance(value, _CLOSED):
            return [], []
        container = self._open_container(name, value)
        is_weak = isinstance(container, WeakDictHolder)
        if container is not None and (is_weak or not getattr(value, "__dict__", None)):
            return [container], []
        holders, links = self._open_object(name, value)
        return ([container, *holders] if container is not None else holders), links

    def _open_container(self, name: Name, value: Any) -> Holder | None:
        if isinstance(value, dict):
            return DictHolder(name, value)
        if isinstance(value, list | deque):
            return ListHolder(name, value)
        if isinstance(value, bytearray | array.array):
            return BytesHolder(name, value)
        if isinstance(value, set):
            return SetHolder(name, value)
        if isinstance(value, WeakKeyDictionary | WeakValueDictionary):
            return WeakDictHolder(name, value)
        if isinstance(value, ContextVar):
            return VariableHolder(name, value)
        if isinstance(value, sqlite3.Connection):
            return ConnectionHolder(name, value)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            self._array_bytes -= value.nbytes
            usable = self._array_bytes >= 0 and value.flags.writeable
            return ArrayHolder(name, value) if usable else None
        users = self._is_users(type(value).__module__)
        return IteratorHolder(name, value) if isinstance(value, Iterator) and not users else None

    def _open_object(self, name: Name, value: Any) -> Opened:
        kind: Any = type(value)
        links: list[tuple[Name, Any]] = []
        if isinstance(value, tuple):
            links += [
                ((name, "{}[{!r}]", i), item) for i, item in islice(enumerate(value), _WIDEST)
            ]
        if isinstance(value, Tensor):
            links += [("a hook", hook) for hook in (value._backward_hooks or {}).values()]
        own = getattr(value, "__dict__", None)
        if _is_closed(kind.__module__):
            return [], links
        holders: list[Holder] = []
        if isinstance(own, dict) and (own or not isinstance(value, Tensor)):
            handles = frozenset(key for key, item in own.items() if isinstance(item, _HANDLES))
            has_thread = any(isinstance(item, threading.Thread) for item in own.values())
            if has_thread or (handles and not self._is_users(kind.__module__)):
                return [], links
            holders.append(DictHolder(name, own, style=_ATTRIBUTE, left_out=handles))
        if slots_of(kind):
            holders.append(SlotsHolder(name, value))
        return holders, [*links, *self._classes(kind)]

    def _open_module(self, name: Name, module: nn.Module) -> Opened:
        links: list[tuple[Name, Any]] = [
            ((name, _ATTRIBUTE, child), part) for child, part in module.named_children()
        ]
        if _is_closed(home_of(module)):  # a wrapper, or scripted
            links += [
                ((name, _ATTRIBUTE, key), b) for key, b in module.named_buffers(recurse=False)
            ]
            return [], links
        holders: list[Holder] = [*attributes_and_buffers(name, module)]
        if home_of(module) != type(module).__module__:  # FSDP2 exchanges its parameters, in hooks
            return holders, [*links, *self._classes(type(module))]
        holders.append(DictHolder(name, module._parameters, style=_ATTRIBUTE))
        for hooks in (vars(module).get(key) for key in _HOOKS):
            if hooks:  # one may remove itself
                holders.append(DictHolder("the hooks of a module", hooks))
        return holders, [*links, *self._classes(type(module))]

    def _open_function(self, function: FunctionType) -> Opened:
        code = function.__code__
        assigned = _assigned_in(code)
        if function.__name__ not in _MAKING:
            self._assigned |= assigned["STORE_ATTR"]
        holders: list[Holder] = []
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            holder = CellHolder(variable, cell)
            holder.is_assigned = variable in assigned["STORE_DEREF"]
            holders.append(holder)
        known = function.__globals__
        names = frozenset(name for name in _names_in(code) if name in known)
        variables = DictHolder("", known, style=_VARIABLE, keys=names)
        variables.assigned_keys = names & assigned["STORE_GLOBAL"]
        holders += [variables, DictHolder(function.__name__, vars(function), style=_ATTRIBUTE)]
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        return holders, [(f"a default of {function.__name__}", value) for value in defaults]

    def _open_class(self, kind: type) -> Opened:
        functions = [value for value in vars(kind).values() if isinstance(value, FunctionType)]
        links: list[tuple[Name, Any]] = [(kind.__name__, function) for function in functions]
        return [ClassHolder(kind.__name__, kind)], [*links, *self._classes(kind)]

    def _classes(self, kind: type) -> list[tuple[Name, Any]]:
        return [(base.__name__, base) for base in kind.__mro__ if self._is_users(base.__module__)]


def function_of(value: Any) -> Any:
    """Return the function of a method; any other object is returned as it is."""
    return value.__func__ if isinstance(value, MethodType) else value


def home_of(module: nn.Module) -> str:
    """Return the name of the Python module that defines a module's class.

    ``fully_shard`` gives a module a class that it makes from the module's own, which is the second base.
    """
    kind = type(module)
    is_made = kind.__module__.startswith("torch.distributed.") and len(kind.__bases__) == 2
    return (kind.__bases__[1] if is_made else kind).__module__


def attributes_and_buffers(name: Name, module: nn.Module) -> list[DictHolder]:
    """Return the holders of a module's own attributes and of its buffers; none for a wrapper."""
    if _is_closed(home_of(module)):
        return []
    own = DictHolder(name, vars(module), style=_ATTRIBUTE, left_out=OWN_OF_MODULES)
    own.may_hold_graphs = True
    buffers: Any = module._buffers
    if not isinstance(buffers, dict):  # scripted
        return []
    return [own, DictHolder(name, buffers, style=_ATTRIBUTE)]


def _variables(module: ModuleType) -> DictHolder:
    """Return the holder of a module's variables: not its functions, classes and imports."""
    closed = (type, FunctionType, BuiltinFunctionType)
    keys = frozenset(
        key
        for key, value in vars(module).items()
        if not key.startswith("__") and not isinstance(value, closed)
    )
    return DictHolder(module.__name__, vars(module), style=_ATTRIBUTE, keys=keys)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


@functools.lru_cache(maxsize=4096)
def _assigned_in(code: CodeType) -> dict[str, frozenset[str]]:
    """Return the names that a function and those inside it assign, by kind of assignment."""
    names: dict[str, set[str]] = {"STORE_ATTR": set(), "STORE_DEREF": set(), "STORE_GLOBAL": set()}
    for instruction in dis.get_instructions(code):
        if instruction.opname in names:
            names[instruction.opname].add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            for kind, inner in _assigned_in(constant).items():
                names[kind] |= inner
    return {kind: frozenset(assigned) for kind, assigned in names.items()}


@functools.lru_cache(maxsize=4096)
def _is_closed(module: str) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:count]) in _CLOSED_PACKAGES for count in (1, 2, 3))


@functools.lru_cache(maxsize=4096)
def is_users(module: str | None) -> bool:
    """Return whether a module is the user's own: neither installed nor of Python itself."""
    if module is None or module == "halfguard" or module.startswith("halfguard."):
        return False
    if module == "__main__":
        return True
    top = module.partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or not os.path.realpath(file).startswith(_installed())


@functools.cache
def _installed() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    others = (path for path in sys.path if path.endswith(PACKAGE_FOLDERS))
    folders = {*map(sysconfig.get_path, names), *others}  # a .pth file may name other packages
    return tuple(os.path.realpath(folder) + os.sep for folder in folders)


def _generator_kinds() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy")
    own = () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
    return (torch.Generator, random.Random, *own)
