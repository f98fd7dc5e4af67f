"""Lint on parts of torch's own source, of growing size, on one core.

A file in which no rule could match, by a search of its bytes, is not parsed. The cost depends on how many
lines are in files that are parsed, so these are counted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.timings.scaling.rows import Row, Table, timed
from halfguard.lint.files import find_files
from halfguard.lint.project import UNKNOWN
from halfguard.lint.rule import ByteSearch
from halfguard.lint.run import Linter
from halfguard.lint.settings import Settings


def _sources() -> list[tuple[Path, int]]:
    """Return files and their lines, in an order that mixes all folders but is always the same."""
    files = find_files([Path(torch.__file__).parent], Settings())
    lines = [(path, path.read_bytes().count(b"\n")) for path in files if path.suffix == ".py"]
    return [one for start in range(97) for one in lines[start::97]]


def _take(sources: Sequence[tuple[Path, int]], lines: int) -> dict[Path, int]:
    taken: dict[Path, int] = {}
    for path, count in sources:
        if sum(taken.values()) >= lines:
            break
        taken[path] = count
    return taken


def _is_parsed(path: Path) -> bool:
    search = ByteSearch(path.read_bytes())
    return any(rule.could_match(search, UNKNOWN, str(path)) for rule in Settings().rules())


def _row(sources: Sequence[tuple[Path, int]], lines: int) -> Row:
    taken, linter = _take(sources, lines), Linter(Settings())
    parsed = [path for path in taken if _is_parsed(path)]
    rest = [path for path in taken if path not in set(parsed)]
    linter.check_file(Path(__file__))  # selects the rules
    parse, results = timed(lambda: [linter.check_file(path) for path in parsed])
    search, others = timed(lambda: [linter.check_file(path) for path in rest])
    total, of_parsed = sum(taken.values()), sum(taken[path] for path in parsed)
    return {
        "lines": total,
        "files": len(taken),
        "lines in files that are parsed": of_parsed,
        "s on one core": parse + search,
        "µs per line that is parsed": 1e6 * parse / of_parsed,
        "µs per other line": 1e6 * search / (total - of_parsed),
        "findings": sum(len(one.diagnostics) for one in (*results, *others)),
        "bytes per path": sum(sys.getsizeof(str(path)) for path in taken) // len(taken),
    }


def tables(counts: Sequence[int] = (20_000, 80_000, 320_000)) -> list[Table]:
    sources = _sources()
    return [Table("Lint of torch's source", [_row(sources, lines) for lines in counts])]
