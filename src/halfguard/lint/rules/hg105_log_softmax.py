"""`log(softmax(x))` is -inf where `log_softmax` is finite."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import called_name, receiver
from halfguard.lint.match import Fix, Match, Meta, Span, match_at
from halfguard.lint.numeric_checks import (
    Logarithm,
    can_be_repeated,
    find_logarithms,
    functional_prefix,
    imports_for,
    may_be_half,
    module_class,
    origin_is_view,
)
from halfguard.lint.python_file import PythonFile, make_fix, replace

META = Meta(
    contains=("softmax", "Softmax"),
    also_contains=("torch.log(", ".log()"),
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find logarithms of softmaxes, also through one assignment."""
    for log in find_logarithms(file):
        softmax = log.origin
        if log.complement or not isinstance(softmax, ast.Call) or file.is_inference(log.call):
            continue
        is_module = module_class(file, softmax) == "Softmax"
        if called_name(softmax) != "softmax" and not is_module:
            continue
        # In float32 a probability underflows only for scores that differ by 103 or more. A project that is
        # known to compute it in float32 is not asked to change it.
        if (log.has_eps or file.project.known) and not may_be_half(file, softmax):
            continue
        fix = None if is_module else _fix(file, log, softmax)
        message = (
            "log(softmax(x)) is -inf where a probability underflows; log_softmax(x) is finite."
        )
        yield match_at(log.call, message, fix)


def _fix(file: PythonFile, log: Logarithm, softmax: ast.Call) -> Fix | None:
    """Replace ``softmax`` by ``log_softmax`` and remove the logarithm around it."""
    if softmax is not log.operand and not can_be_repeated(file, softmax, log.call):
        return None
    if isinstance(log.operand, ast.Subscript) or origin_is_view(file, log):
        return None
    full_name = file.full_name(softmax.func)
    prefix = functional_prefix(file)
    if full_name.startswith(("torch.softmax", "torch.nn.functional.softmax")):
        if not softmax.args:
            return None
        start = Span.before(softmax.args[0])
        text = f"{prefix}.log_softmax({_text_between(file, start, softmax)}"
    else:
        owner = receiver(softmax)
        if owner is None or full_name.startswith(("jax", "scipy", "numpy", "self.")):
            return None
        rest = _text_between(file, Span.after(owner), softmax)
        text = file.text(owner) + rest.replace(".softmax", ".log_softmax", 1)
        prefix = ""
    edit = replace(file, log.call, text)
    return make_fix("unsafe" if log.has_eps else "safe", edit, imports=imports_for(prefix))


def _text_between(file: PythonFile, start: Span, node: ast.expr) -> str:
    end = Span.after(node)
    return file.source.text_at(Span(start.line, start.column, end.line, end.column))
