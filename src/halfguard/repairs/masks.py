"""Repairs of numbers that are bad in half or in any precision: masks, empty batches, a NaN that is hidden."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.settings import set_keyword
from halfguard.repairs.source_file import SIMPLE, SourceFile, called_name, given_to


@Repair
def smaller_masks(file: SourceFile, line: int) -> None:
    """Divide the smallest numbers of the function around a line."""
    for node in ast.walk(file.function_at(line) or file.tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Call):
            continue
        if node.attr == "min" and called_name(node.value) == "finfo":
            file.replace(node, f"({file.source(node)} / 4)")
            file.changed.append(node.lineno)
    file.changed[:] = sorted(set(file.changed))


_LARGE = 1e4  # a constant from here on is taken for a mask


def write_limit(file: SourceFile, value: ast.expr, dtype: str, *, lowest: bool) -> None:
    """Write the smallest or the largest number of a dtype in place of a constant."""
    file.replace(value, f"torch.finfo({dtype}).{'min' if lowest else 'max'}")


@Repair
def smallest_number(file: SourceFile, line: int, dtype: str) -> None:
    """Write the smallest number of a dtype for the masks of a statement."""
    statement = file.statement_at(line)
    if not isinstance(statement, SIMPLE):
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.expr) and _is_far_below(node, file):
            write_limit(file, node, f"torch.{dtype}", lowest=True)


def _is_far_below(node: ast.expr, file: SourceFile) -> bool:
    text = file.source(node).replace(" ", "").replace("'", '"')
    if text in ('float("-inf")', "-torch.inf", "-math.inf", "-np.inf", '-float("inf")'):
        return True
    number = (
        node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else None
    )
    if not isinstance(number, ast.Constant) or not isinstance(number.value, int | float):
        return False
    return number.value > _LARGE


@Repair
def divide_by_labels(file: SourceFile, line: int) -> None:
    """Divide a cross-entropy by the number of labels, or by 1."""
    call = file.only_call(line, "cross_entropy")
    if call is None or len(call.args) != 2 or {k.arg for k in call.keywords} - {"ignore_index"}:
        return
    ignored = next((file.source(k.value) for k in call.keywords), "-100")
    target = file.source(call.args[1])
    text = file.source(call)
    count = f"({target} != {ignored}).sum().clamp(min=1)"
    file.replace(call, f'({text[:-1].rstrip().rstrip(",")}, reduction="sum") / {count})')


@Repair
def labels_from_zero(file: SourceFile, line: int) -> None:
    """Subtract 1 from the labels of the only loss on a line."""
    losses = [call for call in file.calls_of(line) if len(call.args) == 2]
    named = [one for one in losses if called_name(one) in ("cross_entropy", "nll_loss")]
    found = named or losses
    if len(found) == 1 and isinstance(found[0].args[1], ast.Name | ast.Attribute | ast.Subscript):
        file.append(found[0].args[1], " - 1")


_LOSSES = ("CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss")
_UNLABELLED = 255  # of masks that are stored in bytes


@Repair
def ignore_label(file: SourceFile, line: int, label: int) -> None:
    """Let the loss of a line, or the module that it calls, ignore a label that marks what has no class."""
    if 0 <= label != _UNLABELLED:
        return
    names = {file.source(call.func) for call in file.calls_of(line)}
    made = {one.lineno for name in names for one in file.assignments(name)}
    found = [call for at in (line, *made) for call in file.calls_of(at, *_LOSSES)]
    if len(found) == 1:
        set_keyword(file, found[0], "ignore_index", str(label))
        file.changed.append(found[0].lineno)


_FILLS = (
    "full",
    "full_like",
    "new_full",
    "fill_",
    "masked_fill",
    "masked_fill_",
    "pad_sequence",
    "pad",
)


@Repair
def ignored_labels(file: SourceFile, _line: int, label: int) -> None:
    """Write -100, which losses ignore, where the only tensor of a file is filled with a negative label."""
    given = [
        value
        for call in file.calls
        if called_name(call) in _FILLS
        for value in given_to(call)
        if label < 0 and file.source(value).replace(" ", "") == str(label)
    ]
    if len(given) == 1:
        file.replace(given[0], "-100")
        file.changed.append(given[0].lineno)


_MEANS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
          "binary_cross_entropy_with_logits")  # fmt: skip


@Repair
def mean_of_nothing(file: SourceFile, line: int) -> None:
    """Divide a sum by the count, or by 1, where a mean may be over nothing."""
    losses, means = file.calls_of(line, *_MEANS), file.calls_of(line, "mean")
    if len(losses or means) != 1:
        return
    call = (losses or means)[0]
    if losses and len(call.args) == 2 and all(k.arg != "reduction" for k in call.keywords):
        text = f'{file.source(call)[:-1].rstrip().rstrip(",")}, reduction="sum")'
        file.replace(call, f"({text} / max({file.as_owner(call.args[0])}.numel(), 1))")
    elif means and not call.args and not call.keywords and isinstance(call.func, ast.Attribute):
        owner = file.source(call.func.value)
        file.replace(call, f"({owner}.sum() / max({owner}.numel(), 1))")


@Repair
def divide_by_nonzero(file: SourceFile, line: int) -> None:
    """Divide by 1 where the only divisor of a statement of NumPy is 0."""
    statement = file.statement_at(line)
    divisions = [
        node
        for node in ast.walk(statement or ast.Pass())
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and node.lineno == line
    ]
    imports = (node for node in ast.walk(file.tree) if isinstance(node, ast.Import))
    numpy = next(
        (a.asname or a.name for one in imports for a in one.names if a.name == "numpy"), ""
    )
    if isinstance(statement, SIMPLE) and len(divisions) == 1 and numpy:
        by = divisions[0].right
        file.replace(by, f"{numpy}.where({file.as_owner(by)} == 0, 1, {file.source(by)})")


@Repair
def deviation_of_one(file: SourceFile, line: int) -> None:
    """Divide by the count, not by one less, where a deviation may be of one number."""
    calls = file.calls_of(line, "std", "var")
    if len(calls) != 1 or calls[0].args or calls[0].keywords:
        return
    owner = file.owner_of(calls[0])
    if owner and owner != "torch":
        name = called_name(calls[0])
        file.replace(calls[0], f"{owner}.{name}(correction=min(1, {owner}.numel() - 1))")


@Repair
def skip_bad_batch(file: SourceFile, line: int) -> None:
    """Leave a batch out instead of hiding its NaN, or before the backward pass of a bad loss."""
    statement = file.statement_at(line)
    if file.loop_at(line) is None:
        return
    backward = file.sole_call(line, "backward")
    if backward is not None and isinstance(backward[1].func, ast.Attribute):
        scaled = backward[1].func.value
        calls = isinstance(scaled, ast.Call) and called_name(scaled) == "scale" and scaled.args
        passed = backward[1].args[:1]  # of a framework: accelerator.backward(loss)
        loss, margin = (calls or passed or [scaled])[0], " " * backward[0].col_offset
        if isinstance(loss, ast.Name):
            lines = (f"if not torch.isfinite({loss.id}):", "    continue")
            file.insert_before(backward[0], "\n".join(margin + one for one in lines))
        return
    if not isinstance(statement, ast.Assign):
        return
    target, call = statement.targets[0], statement.value
    given = call.args[0] if isinstance(call, ast.Call) and call.args else None
    if isinstance(target, ast.Name) and isinstance(given, ast.Name) and given.id == target.id:
        margin = " " * statement.col_offset
        file.replace(statement, f"if not torch.isfinite({target.id}):\n{margin}    continue")
