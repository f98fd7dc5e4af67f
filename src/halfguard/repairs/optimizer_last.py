"""Move the statement that makes the optimizer to before its first use."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import Place, SourceFile


@Repair
def optimizer_last(file: SourceFile, line: int) -> None:
    """Make the optimizer after the model was copied, replaced or wrapped."""
    statement = file.statement_at(line)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return  # of a return statement, the caller gives it its name
    name, block = file.source(statement.targets[0]), file.block_of(statement)
    at = next(index for index, one in enumerate(block) if one is statement)
    later = block[at + 1 :]
    uses = [one for one in later if _mentions(file, one, name)]
    if not later or (uses and uses[0] is later[0]):
        return
    moved = file.moved(statement, statement.col_offset)
    if uses:
        file.insert_before(uses[0], moved)
    else:
        file.insert_after(later[-1], moved)
    file.remove(statement)
    file.changed.append(statement.lineno)


def _mentions(file: SourceFile, statement: ast.stmt, name: str) -> bool:
    kinds = (ast.Name, ast.Attribute)
    return any(
        isinstance(node, kinds) and file.source(node) == name for node in ast.walk(statement)
    )


def is_returned(place: Place) -> bool:
    """Return whether a line returns what it makes, so that its caller gives it its name."""
    file = SourceFile.read(place[0])
    statement = None if file is None else file.statement_at(place[1])
    return statement is None or isinstance(statement, ast.Return)
