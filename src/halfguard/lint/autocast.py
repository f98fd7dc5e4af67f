"""Regions with autocast: blocks, decorated functions, and functions called only from inside them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from halfguard.lint.expressions import argument, boolean, called_name, has_keyword, string
from halfguard.lint.syntax_tree import Function, SyntaxTree

AutocastDtype = Literal["float16", "bfloat16", "unknown"]


@dataclass(frozen=True)
class Autocast:
    """One call of autocast: its dtype, its device, and whether it is on."""

    call: ast.Call
    dtype: AutocastDtype
    device: str
    enabled: bool | None  # None: decided at runtime

    @property
    def is_half(self) -> bool:
        """True if it casts to float16 when it is on."""
        return self.dtype == "float16" and self.enabled is not False


class AutocastRegions:
    """Autocast regions of a file."""

    def __init__(self, tree: SyntaxTree, is_assumed: Callable[[ast.AST], bool]) -> None:
        self.tree = tree
        self.is_assumed = is_assumed  # whether float16 autocast is on at a node, from the project

    @cached_property
    def by_node(self) -> dict[ast.AST, Autocast]:
        """Every ``with autocast(...)`` block and decorated function, with its autocast call."""
        found: dict[ast.AST, Autocast] = {}
        blocks: list[ast.With | ast.AsyncWith] = [*self.tree.nodes(ast.With)]
        for node in [*blocks, *self.tree.nodes(ast.AsyncWith)]:
            for item in node.items:
                if autocast := self._autocast(item.context_expr):
                    found[node] = autocast
        for function in self.tree.functions:
            for decorator in function.decorator_list:
                if autocast := self._autocast(decorator):
                    found[function] = autocast
        return found

    def _autocast(self, node: ast.expr) -> Autocast | None:
        if not isinstance(node, ast.Call) or called_name(node) not in {"autocast", "amp_autocast"}:
            return None
        name = self.tree.full_name(node.func)
        device = "cuda" if ".cuda." in name else "cpu" if ".cpu." in name else ""
        positions = ("enabled", "dtype") if device else ("device_type", "dtype", "enabled")
        given = {p: argument(node, i, p) for i, p in enumerate(positions)}
        if not device:
            device = string(given["device_type"]) or ""
        # ``**kwargs`` or a wrapper of torch's autocast may set arguments that are not visible here.
        hidden = has_keyword(node, "") or not name.startswith("torch.")
        return Autocast(node, self._dtype(given["dtype"], device, hidden=hidden), device,
                        True if given["enabled"] is None and not hidden
                        else boolean(given["enabled"]))  # fmt: skip

    def _dtype(self, node: ast.expr | None, device: str, *, hidden: bool) -> AutocastDtype:
        if node is None:
            defaults: dict[str, AutocastDtype] = {"cuda": "float16", "cpu": "bfloat16"}
            return "unknown" if hidden else defaults.get(device.partition(":")[0], "unknown")
        name = self.tree.full_name(node)
        if name in {"torch.float16", "torch.half"}:
            return "float16"
        return "bfloat16" if name == "torch.bfloat16" else "unknown"

    @cached_property
    def is_bfloat16(self) -> bool:
        """True if there are regions and all cast to bfloat16, which needs no loss scale."""
        return bool(self.by_node) and all(a.dtype == "bfloat16" for a in self.by_node.values())

    def is_on(self, node: ast.AST) -> bool:
        """Return whether autocast is on at a node, in this file or because of how the project trains."""
        region = self.around(node)
        return self.is_assumed(node) if region is None else region.enabled is not False

    def lowers_to(self, node: ast.AST) -> AutocastDtype | None:
        """Return the dtype to which autocast lowers at a node; None if it is off or not known."""
        region = self.around(node)
        if region is None:
            return "float16" if self.is_assumed(node) else None
        if region.enabled is False:
            return None
        if region.dtype == "unknown":
            return "float16" if self.is_assumed(node) else None
        return region.dtype

    def around(self, node: ast.AST) -> Autocast | None:
        """Return the innermost autocast at a node, or at the calls of the function it is in."""
        direct = self.directly_around(node)
        if direct is not None:
            return direct
        function = self.tree.function_of(node)
        return self._by_callers.get(function) if function is not None else None

    def directly_around(self, node: ast.AST) -> Autocast | None:
        """Return the innermost autocast that encloses a node in the source."""
        for parent in self.tree.ancestors(node):
            if parent in self.by_node:
                return self.by_node[parent]
            if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return None
        return None

    @cached_property
    def _by_callers(self) -> dict[Function, Autocast]:
        """Functions whose calls in this file are all inside autocast, with the autocast of the first."""
        found: dict[Function, Autocast] = {}
        for function in self.tree.functions if self.by_node else ():
            around = [self.directly_around(call) for call in self.tree.callers_of(function)]
            if around and around[0] is not None and None not in around:
                found[function] = around[0]
        return found
