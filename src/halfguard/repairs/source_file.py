"""Edits of a source file by its syntax tree: replaced expressions, inserted lines, and the patch of both.

Names are followed to their assignment only if it is certain: one assignment before the line, in the same
function or in the module, and nothing that the value uses is assigned in between. A value that calls
something is computed once: it gets a name of its own on the line before.

A compound statement owns its header, not its body. If two statements own a line (``a = f(x); b = g(a)``, or
``if x: y = f(x)``), a line alone does not tell which one is meant.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

Place = tuple[str, int]  # file and line
Loop = ast.For | ast.While


def all_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Return all calls of a tree, outer ones first."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def called_name(call: ast.Call) -> str:
    """Return the last name of the function that is called."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def given_to(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call, those with a keyword last."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def statements_around(scope: ast.AST, line: int) -> Iterator[ast.AST]:
    """Yield a scope, and the statements and clauses in it around a line, the outermost first."""
    yield scope
    for child in ast.iter_child_nodes(scope):
        spans = getattr(child, "lineno", 0) <= line <= getattr(child, "end_lineno", math.inf)
        if spans and isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from statements_around(child, line)


def loops_around(scope: ast.AST, line: int) -> list[Loop]:
    """Return the loops of a scope around a line, the outermost first."""
    return [node for node in statements_around(scope, line) if isinstance(node, Loop)]


def assigned_target(statement: ast.stmt) -> ast.expr | None:
    """Return the only target of an assignment, if it is a name or an attribute."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return target if isinstance(target, ast.Name | ast.Attribute) else None
    return None


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, or of a module, without those of functions and classes in it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, _SCOPES):
            yield child
            yield from own_nodes(child)


SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)
Scope = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_PARTS = (ast.ExceptHandler, ast.match_case)


def own_lines(statement: ast.stmt) -> set[int]:
    """Return the lines of a statement without those of its body; a line that both share is one of them."""
    body, head = list[ast.stmt](), list[ast.AST]()
    for child in ast.iter_child_nodes(statement):
        parts = ast.iter_child_nodes(child) if isinstance(child, _PARTS) else (child,)
        for part in parts:
            if isinstance(part, ast.stmt):
                body.append(part)
            else:
                head.append(part)
    lines = _lines(statement)
    for part in body:
        lines -= _lines(part)
    for node in head:
        lines |= _lines(node)
    return lines | {statement.lineno}


def _lines(node: ast.AST) -> set[int]:
    """Return all lines of a node, its decorators included."""
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if first is None or last is None:  # such as the arguments of a function: their parts have lines
        return set().union(*map(_lines, ast.iter_child_nodes(node)))
    decorators = getattr(node, "decorator_list", ())
    return set(range(min([first, *(one.lineno for one in decorators)]), last + 1))


def text_lines(statement: ast.stmt) -> set[int]:
    """Return the lines that may begin inside a string: to indent them would change it."""
    lines: set[int] = set()
    for node in ast.walk(statement):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
        if is_text or type(node).__name__ in ("JoinedStr", "TemplateStr"):
            lines |= _lines(node) - {getattr(node, "lineno", 0)}
    return lines


def inner_scopes(statement: ast.stmt) -> list[Scope]:
    """Return lambdas and comprehensions of a statement, whose names are not those around them."""
    return [node for node in ast.walk(statement) if isinstance(node, Scope)]


def is_shadowed(statement: ast.stmt) -> bool:
    """Return whether a lambda or a comprehension binds a name that the statement also uses outside of it."""
    for scope in inner_scopes(statement):
        inside = set(map(id, ast.walk(scope)))
        outside = (node for node in ast.walk(statement) if id(node) not in inside)
        used = {node.id for node in outside if isinstance(node, ast.Name)}
        if used & set(_bound(scope)):
            return True
    return False


def _bound(scope: Scope) -> Iterator[str]:
    for node in ast.walk(scope):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass
class SourceFile:
    """A parsed source file and the edits to be made; ``patch`` returns them as a unified diff."""

    path: str
    text: str
    tree: ast.Module
    edits: dict[tuple[int, int], bytes] = field(default_factory=dict)  # byte range to new text
    names: dict[ast.expr, str] = field(default_factory=dict)  # expressions that got a name
    refused: bool = False  # an edit was asked for that is not certain
    instead: SourceFile | None = None  # another file, which is edited in place of this one
    changed: list[int] = field(default_factory=list)  # lines that a repair names

    @classmethod
    def read(cls, path: str) -> SourceFile | None:
        """Return the file, or None if it cannot be read as Python."""
        try:
            text = Path(path).read_text("utf-8")
            return cls(path, text, ast.parse(text))
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
            return None

    def source(self, node: ast.AST) -> str:
        """Return the text of a node, or the name that it got."""
        if isinstance(node, ast.expr) and node in self.names:
            return self.names[node]
        if not isinstance(node, ast.expr | ast.stmt):
            return ""
        start = self._offset(node.lineno, node.col_offset)
        end = self._offset(node.end_lineno or 0, node.end_col_offset or 0)
        return self._bytes[start:end].decode("utf-8", "surrogatepass")

    def function_at(self, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """Return the innermost function around a line."""
        around = [f for f in self._functions if f.lineno <= line <= (f.end_lineno or 0)]
        return max(around, key=lambda node: node.lineno, default=None)

    def calls_at(self, line: int) -> list[ast.Call]:
        """Return the calls around a line, outermost first."""
        return list(self._calls_around.get(line, ()))

    def calls_of(self, line: int, *names: str) -> list[ast.Call]:
        """Return the calls of the statement on a line, all or those of some names, outer ones first."""
        statement = self.statement_at(line)
        found = () if statement is None else all_calls(statement)
        return [call for call in found if not names or called_name(call) in names]

    def only_call(self, line: int, *names: str) -> ast.Call | None:
        """Return the call of one of these functions around a line, if it is the only one."""
        found = [call for call in self.calls_at(line) if called_name(call) in names]
        return found[0] if len(found) == 1 else None

    def sole_call(self, line: int, *names: str) -> tuple[ast.stmt, ast.Call] | None:
        """Return the statement of a line and its call, if it is nothing but a call of one of these."""
        statement = self.statement_at(line)
        call = statement.value if isinstance(statement, ast.Expr) else None
        if statement is None or not isinstance(call, ast.Call):
            return None
        return (statement, call) if not names or called_name(call) in names else None

    def owner_of(self, call: ast.Call) -> str:
        """Return the text of what a method is called on."""
        return self.source(call.func.value) if isinstance(call.func, ast.Attribute) else ""

    def as_owner(self, node: ast.expr) -> str:
        """Return the text of an expression, in parentheses if a method cannot be called on it as it is."""
        simple = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        return self.source(node) if simple else f"({self.source(node)})"

    def has_call(self, owner: str, *names: str) -> bool:
        """Return whether a file calls one of these methods of an owner."""
        called = {f"{owner}.{name}" for name in names}
        return any(self.source(call.func) in called for call in self.calls)

    def loop_at(self, line: int) -> Loop | None:
        """Return the innermost loop around a line, in the same function."""
        return next(reversed(loops_around(self.function_at(line) or self.tree, line)), None)

    @cached_property
    def calls(self) -> list[ast.Call]:
        """All calls of the file, outer ones first."""
        return list(all_calls(self.tree))

    @cached_property
    def _calls_around(self) -> dict[int, list[ast.Call]]:
        found: dict[int, list[ast.Call]] = {}
        for call in self.calls:
            for line in range(call.lineno, (call.end_lineno or call.lineno) + 1):
                found.setdefault(line, []).append(call)
        return found

    @cached_property
    def _functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef
        return [node for node in ast.walk(self.tree) if isinstance(node, kinds)]

    def statement_at(self, line: int) -> ast.stmt | None:
        """Return the statement of a line; None if several share it, such as ``a = f(x); b = g(a)``."""
        found = self._statements.get(line, [])
        return found[0] if len(found) == 1 else None

    @cached_property
    def _statements(self) -> dict[int, list[ast.stmt]]:
        found = defaultdict[int, list[ast.stmt]](list)
        for node in (n for n in ast.walk(self.tree) if isinstance(n, ast.stmt)):
            for line in own_lines(node):
                found[line].append(node)
        return found

    def is_alone(self, statement: ast.stmt) -> bool:
        """Return whether no other statement shares a line with one."""
        rows = {statement.lineno, statement.end_lineno or statement.lineno}
        return all(self.statement_at(row) is statement for row in rows)

    def assigned(self, name: str, line: int) -> ast.expr | None:
        """Return the value of a name on a line, if one assignment before it in the same scope is certain."""
        scope = self.function_at(line) or self.tree
        lines = _stores(name, scope)
        if line in lines and self.statement_at(line) is None:
            return None
        stores = [row for row in lines if row < line]
        found = [
            node.value
            for node in own_nodes(scope)
            if isinstance(node, ast.Assign)
            and node.lineno < line
            and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
        ]
        return found[0] if len(found) == 1 and len(stores) == 1 else None

    def assignments(self, name: str) -> list[ast.Assign]:
        """Return all assignments of a file to a name or an attribute."""
        found = (node for node in ast.walk(self.tree) if isinstance(node, ast.Assign))
        return [one for one in found if any(self.source(to) == name for to in one.targets)]

    def is_unchanged(self, value: ast.expr, line: int) -> bool:
        """Return whether the names of an expression have the same values on a later line."""
        if value.lineno == line:
            return True
        scope = self.function_at(line) or self.tree
        used = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        # From its own statement on: x = torch.sigmoid(x) is another x afterwards.
        statement = self.statement_at(value.lineno)
        begin = value.lineno if statement is None else statement.lineno
        # In a loop that the value is not part of, a later line runs before this one comes again.
        loops = (loop for loop in loops_around(scope, line) if loop.lineno > value.lineno)
        end = max([line, *((loop.end_lineno or line) + 1 for loop in loops)])
        return not any(begin <= row < end for name in used for row in _stores(name, scope))

    def hoist(self, value: ast.expr) -> str:
        """Give an expression a name on the line before its statement, and return the name."""
        if value in self.names:
            return self.names[value]
        statement = self.statement_at(value.lineno)
        if statement is None or not self.is_alone(statement) or _is_in_scope(value, statement):
            self.refused = True
            return ""
        taken = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}
        name = next(
            n
            for n in ("logits", *(f"logits_{i}" for i in range(1, 99)))
            if n not in taken | set(self.names.values())
        )
        start = self._offset(statement.lineno, 0)
        indent = " " * statement.col_offset
        self._add((start, start), f"{indent}{name} = {self.source(value)}\n")
        self.replace(value, name)
        self.names[value] = name
        return name

    def replace(self, node: ast.expr | ast.stmt, new: str) -> None:
        """Replace the text of a node."""
        start = self._offset(node.lineno, node.col_offset)
        end = self._offset(node.end_lineno or 0, node.end_col_offset or 0)
        # A comment inside of several lines would be lost.
        old = self._bytes[start:end]
        self.refused |= b"#" in old and b"\n" in old and "#" not in new
        self._add((start, end), new)

    def replace_attribute(self, node: ast.Attribute, name: str) -> None:
        """Replace the name of an attribute, not what it belongs to."""
        end = self._offset(node.end_lineno or 0, node.end_col_offset or 0)
        self._add((end - len(node.attr.encode()), end), name)

    def append(self, node: ast.expr | ast.arg, text: str) -> None:
        """Write text directly after an expression."""
        end = self._offset(node.end_lineno or 0, node.end_col_offset or 0)
        self._add((end, end), text)

    def indent(self, statement: ast.stmt, head: str) -> None:
        """Put a statement into a block; lines that begin inside a string stay as they are."""
        self.refused |= not self.is_alone(statement)
        first = self._offset(statement.lineno, 0)
        margin = " " * statement.col_offset
        self._add((first, first), f"{margin}{head}\n    ")
        rows = range(statement.lineno + 1, (statement.end_lineno or statement.lineno) + 1)
        for line in sorted(set(rows) - text_lines(statement)):
            start = self._offset(line, 0)
            self._add((start, start), "    ")

    def insert_after(self, statement: ast.stmt, line: str) -> None:
        """Write a line after the last one of a statement."""
        self.refused |= not self.is_alone(statement)
        end = self._offset((statement.end_lineno or statement.lineno) + 1, 0)
        at_end = self.text.endswith("\n") or end < len(self._bytes)
        self._add((end, end), f"{line}\n" if at_end else f"\n{line}")

    def insert_before(self, statement: ast.stmt, text: str) -> None:
        """Write lines before the first one of a statement."""
        self.refused |= self.statement_at(statement.lineno) is not statement
        start = self._offset(statement.lineno, 0)
        self._add((start, start), f"{text}\n")

    def remove(self, statement: ast.stmt) -> None:
        """Leave out a statement with its lines; the only one of a block becomes ``pass``."""
        block = self.block_of(statement)
        inner = list(ast.walk(statement))
        rows = (statement.lineno, statement.end_lineno or statement.lineno)
        if len(block) == 1 or any(self.statement_at(row) not in inner for row in rows):
            self.replace(statement, "pass")
            return
        end = (statement.end_lineno or statement.lineno) + 1
        self._add((self._offset(statement.lineno, 0), self._offset(end, 0)), "")

    def block_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the statements of the block that holds one."""
        for node in statements_around(self.tree, statement.lineno):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list) and any(one is statement for one in block):
                    return block
        return []

    def moved(self, statement: ast.stmt, column: int) -> str:
        """Return the lines of a statement as they read at another column."""
        first, *rest = self.source(statement).split("\n")
        shift, kept = column - statement.col_offset, text_lines(statement)
        lines = [" " * column + first]
        for number, line in enumerate(rest, statement.lineno + 1):
            indent = len(line) - len(line.lstrip(" "))
            at = " " * max(0, indent + shift)
            lines.append(line if number in kept else at + line.lstrip(" "))
        return "\n".join(lines)

    def patch(self) -> str:
        """Return all edits as a unified diff; empty if there is none, or if they do not fit together."""
        if self.instead is not None:
            return self.instead.patch()
        after = self.after()
        return unified_diff(self.path, self.text, after) if after else ""

    def after(self) -> str:
        """Return the source after all edits; empty if there is none, or if they do not fit together."""
        ranges = sorted(self.edits)
        if self.refused or not ranges or any(a[1] > b[0] for a, b in pairwise(ranges)):
            return ""
        after = self._bytes
        for start, end in reversed(ranges):
            after = after[:start] + self.edits[start, end] + after[end:]
        text = after.decode("utf-8", "surrogatepass")
        written = b" ".join(self.edits.values())
        try:
            ast.parse(text)
            for name in ("halfguard", "torch"):
                if re.search(rf"(?<![.\w]){name}\.".encode(), written) and not self._uses(name):
                    text = add_import(text, name)
        except SyntaxError:
            return ""
        return text

    def _uses(self, name: str) -> bool:
        return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(self.tree))

    def _add(self, at: tuple[int, int], new: str) -> None:
        newline = "\r\n" if "\r\n" in self.text else "\n"
        self.edits[at] = self.edits.get(at, b"") + new.replace("\n", newline).encode()

    @cached_property
    def _bytes(self) -> bytes:
        return self.text.encode("utf-8", "surrogatepass")

    @cached_property
    def _starts(self) -> list[int]:
        lengths = map(len, self._bytes.splitlines(keepends=True))
        return [0, *accumulate(lengths)]

    def _offset(self, line: int, column: int) -> int:
        return self._starts[min(line, len(self._starts)) - 1] + column


def _is_in_scope(value: ast.expr, statement: ast.stmt) -> bool:
    return any(value in ast.walk(scope) for scope in inner_scopes(statement))


def _stores(name: str, scope: ast.AST) -> list[int]:
    """Return the lines that assign a name of a scope."""
    shared = any(
        isinstance(node, ast.Global | ast.Nonlocal) and name in node.names
        for node in ast.walk(scope)
    )
    nodes = ast.walk(scope) if shared else own_nodes(scope)
    names = (n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return [node.lineno for node in names if node.id == name]


def unified_diff(file: str, before: str, after: str) -> str:
    """Return the change of a file as a patch, with its path below the current folder."""
    shown = Path(file)
    shown = shown.relative_to(Path.cwd()) if shown.is_relative_to(Path.cwd()) else shown
    name = str(shown).lstrip("/")
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"a/{name}", f"b/{name}", n=1, lineterm=""
    )
    return "\n".join(lines)


def add_import(text: str, name: str) -> str:
    """Return the source with an import of a module below those at its top, if it has none yet.

    Raise a SyntaxError if the line below is not certain.
    """
    body = ast.parse(text).body
    plain = [alias for node in body if isinstance(node, ast.Import) for alias in node.names]
    if any(one.name.partition(".")[0] == name and one.asname is None for one in plain):
        return text
    last = 0
    for node in body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        if first <= last:
            raise SyntaxError("two statements share a line")
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not isinstance(node, ast.Import | ast.ImportFrom) and not (is_docstring and last == 0):
            last = last or first - 1
            break
        last = node.end_lineno or node.lineno
    lines = text.encode("utf-8", "surrogatepass").splitlines(keepends=True)
    newline = b"\r\n" if lines and lines[0].endswith(b"\r\n") else b"\n"
    if last and not lines[last - 1].endswith((b"\n", b"\r")):
        lines[last - 1] += newline
    lines.insert(last, f"import {name}".encode() + newline)
    return b"".join(lines).decode("utf-8", "surrogatepass")
