"""Rewrite source lines to use stable operations, as a patch.

Only certain cases are rewritten: a call of torch's function or method, a quotient, a root. If a line is
written in another way, there is no patch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from halfguard.repairs.source_file import add_import, unified_diff

_MODULES = ("torch", "F", "torch.nn.functional", "functional", "nn.functional")
_UNARY = ("log", "exp", "sqrt", "rsqrt", "logsigmoid")
_SAME_ARGUMENTS = ("cross_entropy", "binary_cross_entropy")
_ROUNDS = 8  # operations on one line


def make_patch(names: Mapping[tuple[str, int], set[str]]) -> str:
    """Return a unified diff that writes operations of halfguard.ops into lines; empty if not certain.

    ``names`` maps a file and a line to the operations that the line should use.
    """
    files = {file: {} for file, _ in names}  # type: dict[str, dict[int, set[str]]]
    for (file, line), wanted in names.items():
        files[file][line] = wanted
    diffs = [_diff(file, lines) for file, lines in files.items()]
    return "\n".join(diffs) if all(diffs) else ""


def _diff(file: str, wanted: Mapping[int, set[str]]) -> str:
    try:
        before = after = Path(file).read_text("utf-8")
        for line, names in sorted(
            wanted.items(), reverse=True
        ):  # from the end: a statement may become shorter
            changed = _rewritten(after, line, names)
            if changed == after:
                return ""
            after = changed
        after = add_import(after, "halfguard")
    except (OSError, UnicodeDecodeError, SyntaxError):
        return ""
    return unified_diff(file, before, after)


def _rewritten(text: str, line: int, names: set[str]) -> str:
    for _ in range(_ROUNDS):
        tree = ast.parse(text)
        nodes = [n for n in ast.walk(tree) if isinstance(n, ast.expr) and n.lineno == line]
        changes = ((node, new) for node in nodes if (new := _stable(node, text, names)))
        found = next(changes, None)
        if found is None:
            break
        text = splice(text, *found)
    return text


def splice(text: str, node: ast.expr, new: str) -> str:
    """Return a source with one expression replaced."""
    lines = text.splitlines(keepends=True)
    assert node.end_lineno is not None and node.end_col_offset is not None  # noqa: S101, PT018
    head = lines[node.lineno - 1].encode()[: node.col_offset].decode()
    tail = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
    lines[node.lineno - 1 : node.end_lineno] = [head + new + tail]
    return "".join(lines)


def _stable(node: ast.expr, text: str, names: set[str]) -> str:
    """Return the expression in its stable form; empty if there is none."""

    def source(part: ast.expr) -> str:
        return ast.get_source_segment(text, part) or ""

    if isinstance(node, ast.BinOp):
        return _quotient_or_root(node, source(node.left), source(node.right), names)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    of, name = source(node.func.value), node.func.attr
    args = [source(arg) for arg in node.args]
    keywords = {k.arg: source(k.value) for k in node.keywords if k.arg}
    starred = any(isinstance(arg, ast.Starred) for arg in node.args)
    if starred or len(keywords) < len(node.keywords) or of.endswith("ops"):
        return ""
    if of not in _MODULES:
        args = [of, *args]
    return next(_calls(name, args, keywords, names), "")


def _quotient_or_root(node: ast.BinOp, left: str, right: str, names: set[str]) -> str:
    constant = isinstance(node.left, ast.Constant) or isinstance(node.right, ast.Constant)
    if isinstance(node.op, ast.Div) and "div" in names and not constant:
        return f"halfguard.ops.div({left}, {right})"
    root = {"0.5": "sqrt", "-0.5": "rsqrt"}.get(right.replace(" ", ""), "")
    if isinstance(node.op, ast.Pow) and root in names:
        return f"halfguard.ops.{root}({left})"
    return ""


def _calls(name: str, args: list[str], keywords: dict[str, str], names: set[str]) -> Iterator[str]:
    if name in _UNARY and name in names and len(args) == 1 and not keywords:
        yield f"halfguard.ops.{name}({args[0]})"
    if name in ("div", "true_divide") and "div" in names and len(args) == 2 and not keywords:
        yield f"halfguard.ops.div({', '.join(args)})"
    if name == "div_" and "div" in names and len(args) == 2 and args[0].isidentifier():
        yield f"{args[0]}.copy_(halfguard.ops.div({', '.join(args)}))"
    if name == "pow" and len(args) == 2 and not keywords:
        root = {"0.5": "sqrt", "-0.5": "rsqrt"}.get(args[1].replace(" ", ""), "")
        if root in names:
            yield f"halfguard.ops.{root}({args[0]})"
    if name == "softmax" and "masked_softmax" in names and args[0].isidentifier():
        dim = keywords.get("dim", args[1] if len(args) == 2 else "")
        if dim:
            yield f"halfguard.ops.masked_softmax({args[0]}, ~{args[0]}.isneginf(), {dim})"
    if name == "normalize" and name in names and len(args) == 1 and set(keywords) <= {"dim"}:
        yield f"halfguard.ops.normalize({args[0]}, {keywords.get('dim', '1')})"
    if name == "cosine_similarity" and name in names and set(keywords) <= {"dim"}:
        dim = args[2] if len(args) == 3 else keywords.get("dim", "1")
        yield f"halfguard.ops.cosine_similarity({', '.join([*args[:2], dim])})"
    if name in _SAME_ARGUMENTS and name in names and len(args) == 2:
        known = {"ignore_index", "label_smoothing"} if name == "cross_entropy" else set()
        if set(keywords) <= known:
            given = [*args, *(f"{key}={value}" for key, value in keywords.items())]
            yield f"halfguard.ops.{name}({', '.join(given)})"
