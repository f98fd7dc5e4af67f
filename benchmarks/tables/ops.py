"""Measure the error of every unary operation over all half values: the table in docs/reference/ops.md.

``python -m benchmarks.tables.ops DEVICE`` prints the table for another device.
"""

from __future__ import annotations

import sys

import torch

from benchmarks.ops.accuracy import Accuracy, all_finite, measure
from benchmarks.ops.references import UNARY, UnaryOp
from benchmarks.tables.sections import ROOT, markdown_table, rows_of_section, write_section

TABLE = (ROOT / "docs" / "reference" / "ops.md", "ops_table")
HEAD = ["operation", "dtype", "value, ulp", "at x =", "gradient, ulp", "at x =", "cap (gradient 0)"]
DTYPES = (torch.float16, torch.bfloat16)
CONTRACT = 1.0

Row = tuple[UnaryOp, torch.dtype, Accuracy]


def measure_all(device: str) -> list[Row]:
    inputs = {dtype: all_finite(dtype, device) for dtype in DTYPES}
    return [(op, dtype, measure(op, inputs[dtype])) for op in UNARY for dtype in DTYPES]


def cells(row: Row) -> list[str]:
    op, dtype, found = row
    pairs = ((f"{w.error:.3f}", f"{w.at:.6g}") for w in (found.forward, found.gradient))
    worst = [text for pair in pairs for text in pair]
    return [f"`{op.name}`", str(dtype).removeprefix("torch."), *worst, op.cap]


def update(*, check: bool) -> list[str]:
    """Write the table, or return what is wrong: other operations than the page's, or errors above 1 ulp."""
    rows = measure_all("cpu")
    if not check:
        write_section(TABLE, markdown_table(HEAD, [cells(row) for row in rows]))
    # Last digits differ between machines; the operations and their caps do not.
    listed, expected = rows_of_section(TABLE), [cells(row) for row in rows]
    problems = []
    if [(c[0], c[1], c[-1]) for c in listed] != [(c[0], c[1], c[-1]) for c in expected]:
        problems.append("the page lists other operations or caps")
    figures = [(c[0], c[1], float(c[2]), float(c[4])) for c in listed + expected]
    return problems + [
        f"{name} in {dtype} exceeds {CONTRACT:g} ulp: value {value:g}, gradient {slope:g}"
        for name, dtype, value, slope in figures
        if not max(value, slope) <= CONTRACT
    ]


if __name__ == "__main__":
    print(markdown_table(HEAD, [cells(row) for row in measure_all(sys.argv[1])]))
