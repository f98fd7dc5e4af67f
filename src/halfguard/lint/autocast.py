"""Where autocast is on: blocks, decorated functions, and functions called from inside them."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from halfguard.lint.module import Function, Module
from halfguard.lint.names import argument, boolean, has_keyword, key, last_name, string

Dtype = Literal["float16", "bfloat16", "unknown"]


@dataclass(frozen=True)
class Autocast:
    """One use of autocast: what it casts to, whether it is on, and the call that says so."""

    call: ast.Call
    dtype: Dtype
    device: str
    enabled: bool | None  # None: decided at run time

    @property
    def is_half(self) -> bool:
        """Whether it surely casts to float16 when it is on at all."""
        return self.dtype == "float16" and self.enabled is not False


class Regions:
    """The autocast regions of a module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        # What callers pass, by function and parameter: filled by ``precision``, each once.
        self.parameters: dict[tuple[Function, str], object] = {}

    @cached_property
    def all(self) -> dict[ast.AST, Autocast]:
        """Every ``with autocast(...)`` and decorated function, with what it does."""
        found: dict[ast.AST, Autocast] = {}
        blocks: list[ast.With | ast.AsyncWith] = [*self.module.nodes(ast.With)]
        for node in [*blocks, *self.module.nodes(ast.AsyncWith)]:
            for item in node.items:
                if context := self._autocast(item.context_expr):
                    found[node] = context
        for function in self.module.functions:
            for decorator in function.decorator_list:
                if context := self._autocast(decorator):
                    found[function] = context
        return found

    def _autocast(self, node: ast.expr) -> Autocast | None:
        if not isinstance(node, ast.Call) or last_name(node) not in {"autocast", "amp_autocast"}:
            return None
        name = self.module.dotted(node.func)
        device = "cuda" if ".cuda." in name else "cpu" if ".cpu." in name else ""
        positions = ("enabled", "dtype") if device else ("device_type", "dtype", "enabled")
        given = {p: argument(node, i, p) for i, p in enumerate(positions)}
        if not device:
            device = string(given["device_type"]) or ""
        hidden = has_keyword(node, "") or not name.startswith("torch.")
        return Autocast(node, self._dtype(given["dtype"], device, hidden=hidden), device,
                        True if given["enabled"] is None and not hidden
                        else boolean(given["enabled"]))  # fmt: skip

    def _dtype(self, node: ast.expr | None, device: str, *, hidden: bool) -> Dtype:
        if node is None:
            defaults: dict[str, Dtype] = {"cuda": "float16", "cpu": "bfloat16"}
            return "unknown" if hidden else defaults.get(device.partition(":")[0], "unknown")
        name = self.module.dotted(node)
        if name in {"torch.float16", "torch.half"}:
            return "float16"
        return "bfloat16" if name == "torch.bfloat16" else "unknown"

    def around(self, node: ast.AST) -> Autocast | None:
        """The innermost autocast in force at a node, also through one call in the same module."""
        direct = self.directly_around(node)
        if direct is not None:
            return direct
        function = self.module.function_of(node)
        return self._callers.get(function) if function is not None else None

    def directly_around(self, node: ast.AST) -> Autocast | None:
        """The innermost autocast that encloses a node in the source itself."""
        for parent in self.module.ancestors(node):
            if parent in self.all:
                return self.all[parent]
            if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return None
        return None

    @cached_property
    def _callers(self) -> dict[Function, Autocast]:
        """Functions of this module that are called inside a region, and nowhere outside one."""
        found: dict[Function, Autocast] = {}
        if not self.all:
            return found
        for name, functions in self._by_name.items():
            contexts = [
                self.directly_around(call)
                for call in self.module.calls(name)
                if key(call.func) in {name, f"self.{name}"}
            ]
            if contexts and contexts[0] is not None and None not in contexts:
                found.update(dict.fromkeys(functions, contexts[0]))
        return found

    @cached_property
    def _by_name(self) -> dict[str, list[Function]]:
        found: dict[str, list[Function]] = defaultdict(list)
        for function in self.module.functions:
            found[function.name].append(function)
        return found
