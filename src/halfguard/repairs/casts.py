"""Repairs of casts: numbers that have to be FP32, or have the dtype of a tensor that they are written to."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import Place, SourceFile, called_name, given_to

_WORDS = ("dtype", "half", "float16")
HALF = ("float16", "half", "bfloat16")
DTYPES = ("dtype", "torch_dtype")
_REGIONS = ("autocast", "custom_fwd")  # their dtype is not one of a tensor


@Repair
def leave_out_cast(file: SourceFile, line: int, same: tuple[int, ...] = ()) -> None:
    """Cast to FP32 instead, in every cast of the statement on a line, or make its tensors in FP32.

    In the ``same`` other lines, casts to the same dtype are changed as well.
    """
    for default in _half_defaults(file, line):
        file.replace(default, "torch.float32")
    if not file.edits:
        texts = lift_casts(file, line)
        for other in (*same,) if texts else ():
            if file.statement_at(other) is not file.statement_at(line):
                lift_casts(file, other, texts)


def lift_casts(file: SourceFile, line: int, only: Collection[str] = ()) -> set[str]:
    """Let a statement that makes 16-bit tensors make FP32 ones; return how it named the dtypes."""
    texts = set[str]()
    for call in file.calls_of(line):
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr in HALF and not given_to(call):
            if not only or f".{function.attr}()" in only:
                file.replace_attribute(function, "float")
                texts.add(f".{function.attr}()")
            continue
        for dtype in _dtypes_of(file, call):
            text = file.source(dtype)
            if only and text not in only:
                continue
            texts.add(text)
            if (
                called_name(call) == "to"
                and isinstance(function, ast.Attribute)
                and call.args == [dtype]
            ):
                file.replace_attribute(function, "float")
                file.replace(dtype, "")
            else:
                file.replace(dtype, _wide(text))
    return texts


def _wide(text: str) -> str:
    is_numpy = "np." in text or "numpy." in text or text[:1] in "'\""
    return text.replace("float16", "float32") if is_numpy else "torch.float32"


def _dtypes_of(file: SourceFile, call: ast.Call) -> Iterator[ast.expr]:
    """Yield the arguments of a call that name the dtype of what it makes."""
    if called_name(call) in _REGIONS:
        return
    casts = called_name(call) in ("to", "type", "astype") and isinstance(call.func, ast.Attribute)
    yield from (one for one in call.args if casts and names_half(file, one))
    yield from (k.value for k in call.keywords if k.arg in DTYPES and names_half(file, k.value))


def names_half(file: SourceFile, node: ast.expr) -> bool:
    """Return whether an expression may name a 16-bit dtype, by its words or by those that it is assigned."""
    text = file.source(node).lower()
    if text.startswith("getattr(torch,") or any(word in text for word in _WORDS):
        return True
    assigned = file.assignments(text) if isinstance(node, ast.Name) else ()
    return any(word in file.source(one.value) for one in assigned for word in _WORDS[1:])


def _half_defaults(file: SourceFile, line: int) -> Iterator[ast.expr]:
    """Yield the defaults of arguments of the function around a line that it names as dtypes."""
    function, statement = file.function_at(line), file.statement_at(line)
    if function is None or statement is None:
        return
    given = function.args
    named = reversed((*given.posonlyargs, *given.args))
    pairs: list[tuple[ast.arg, ast.expr | None]] = [
        *zip(named, reversed(given.defaults), strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    for argument, default in pairs:
        half = default is not None and file.source(default).removeprefix("torch.") in HALF
        if argument.arg in used and half and default is not None:
            yield default


_HALF_FIRST = ("got Half and Float", "got BFloat16 and Float", "Input type (c10::Half) and",
               "Input type (c10::BFloat16) and")  # fmt: skip


@Repair
def float_arguments(file: SourceFile, line: int, error: str) -> None:
    """Cast the argument of a module that an error names to FP32."""
    if not any(text in error for text in _HALF_FIRST):
        return
    for call in file.calls_of(line):
        named = isinstance(call.func, ast.Name | ast.Attribute)
        names = [one for one in call.args if isinstance(one, ast.Name | ast.Attribute)]
        if named and len(call.args) == 1 and names and not call.keywords:
            file.replace(names[0], f"{file.source(names[0])}.float()")
            return


@Repair
def call_in_fp32(file: SourceFile, line: int, kernel: str, index: int) -> None:
    """Cast the argument of one of the calls of a line: those of the kernel's own function come first."""
    calls = [call for call in file.calls_of(line) if call.args]
    calls.sort(key=lambda call: not kernel.startswith(called_name(call) or "-"))
    if index < len(calls):
        given = calls[index].args[0]
        file.replace(given, f"{file.as_owner(given)}.float()")


@Repair
def float_before_numpy(file: SourceFile, line: int) -> None:
    """Cast to FP32 before the only conversion to NumPy on a line: NumPy has no bfloat16."""
    calls = file.calls_of(line, "numpy")
    if len(calls) == 1 and (owner := _receiver(calls[0])) is not None:
        file.replace(calls[0].func, f"{file.as_owner(owner)}.float().numpy")


_DEVICE = 'device_type="cuda" if torch.cuda.is_available() else "cpu"'
_DECORATORS = {
    "forward": f"custom_fwd({_DEVICE}, cast_inputs=torch.float32)",
    "backward": f"custom_bwd({_DEVICE})",
}


@Repair
def custom_autocast(file: SourceFile, line: int) -> None:
    """Run an autograd.Function in FP32: autocast may be on in its forward pass only."""
    for one in _function_around(file, line):
        named = isinstance(one, ast.FunctionDef) and _DECORATORS.get(one.name)
        known = [file.source(d) for d in getattr(one, "decorator_list", ())]
        if named and not any("custom_" in text for text in known):
            file.insert_before(one, f"{' ' * one.col_offset}@torch.amp.{named}")


def is_custom_backward(place: Place | None) -> bool:
    """Return whether a line is in the backward pass of an autograd.Function."""
    file = None if place is None else SourceFile.read(place[0])
    function = None if file is None or place is None else file.function_at(place[1])
    is_backward = function is not None and function.name == "backward"
    return bool(is_backward and file and place and _function_around(file, place[1]))


def _function_around(file: SourceFile, line: int) -> list[ast.stmt]:
    """Return the body of the class around a line, if it is an autograd.Function."""
    for node in (one for one in ast.walk(file.tree) if isinstance(one, ast.ClassDef)):
        around = node.lineno <= line <= (node.end_lineno or 0)
        if around and any(file.source(base).endswith("Function") for base in node.bases):
            return node.body
    return []


_WRITERS = ("index_add", "index_copy", "scatter", "scatter_add", "scatter_reduce", "index_put")


@Repair
def cast_source(file: SourceFile, line: int) -> None:
    """Cast the last tensor that a writing call on a line is given, or what is assigned to a part of one."""
    statement = file.statement_at(line)
    part = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if isinstance(statement, ast.Assign) and isinstance(part, ast.Subscript):
        if (owner := file.source(part.value)).replace(".", "").isidentifier():
            file.replace(statement.value, f"{file.as_owner(statement.value)}.to({owner}.dtype)")
        return
    found = [call for call in file.calls_of(line) if called_name(call).rstrip("_") in _WRITERS]
    if len(found) != 1:
        return
    call, target = found[0], file.owner_of(found[0])
    at = 1 if called_name(call).startswith("index_put") else 2
    source = call.args[at] if len(call.args) > at else None
    source = next((k.value for k in call.keywords if k.arg in ("src", "source", "values")), source)
    if target.isidentifier() and isinstance(source, ast.expr):
        file.replace(source, f"{file.as_owner(source)}.to({target}.dtype)")


_CASTS = ("to", "half", "bfloat16", "type", "type_as")
_MOVES = ("to", "cuda", "unsqueeze", "view", "reshape", "expand", "contiguous")
_WHOLE = ast.Add | ast.Sub | ast.Mult | ast.FloorDiv


@Repair
def float_positions(file: SourceFile, line: int) -> None:
    """Cast the whole numbers of a statement to FP32, if it is certain which cast is theirs."""
    casts = file.calls_of(line, *_CASTS)
    counts = [call for call in casts if _is_count(file, _receiver(call))]
    theirs = [call for call in counts if _dtype(file, call) is not None] if counts else casts
    dtype = _dtype(file, theirs[0]) if len(theirs) == 1 else None
    owner = _receiver(theirs[0]) if dtype is not None else None
    if dtype is None or owner is None:
        return
    if dtype is theirs[0] or len(given_to(theirs[0])) == 1:
        file.replace(theirs[0], f"{file.source(owner)}.float()")
    else:
        file.replace(dtype, "torch.float32")


def _receiver(call: ast.Call) -> ast.expr | None:
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _dtype(file: SourceFile, call: ast.Call) -> ast.expr | None:
    """Return the dtype that a cast is given, or the cast itself if it is named by its dtype."""
    if called_name(call) in HALF:
        return call
    found = []
    for one in given_to(call):
        is_name = isinstance(one, ast.Name | ast.Attribute)
        name = file.source(one).rsplit(".", maxsplit=1)[-1] if is_name else ""
        if "dtype" in name or name in HALF:
            found.append(one)
    return found[0] if called_name(call) == "to" and len(found) == 1 else None


def _is_count(file: SourceFile, node: ast.expr | None) -> bool:
    """Return whether an expression is surely a row of whole numbers, such as ``torch.arange(n)``."""
    if isinstance(node, ast.Call) and called_name(node) == "arange":
        return all(keyword.arg != "dtype" for keyword in node.keywords)
    if isinstance(node, ast.Call) and called_name(node) in _MOVES:
        return _dtype(file, node) is None and _is_count(file, _receiver(node))
    if isinstance(node, ast.BinOp) and isinstance(node.op, _WHOLE):
        return _is_count(file, node.left) or _is_count(file, node.right)
    value = file.assigned(node.id, node.lineno) if isinstance(node, ast.Name) else None
    return value is not None and _is_count(file, value)
