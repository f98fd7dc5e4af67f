"""The tables of docs/reference/hardware.md, as the rows of ``hardware.yaml`` say them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from halfguard.hardware.choice import choose
from halfguard.hardware.lookup import Table


def page_lines(table: Table) -> Iterator[str]:
    """Every line of the page that is data."""
    numbers = {key: str(number) for number, key in enumerate(table.documents, 1)}
    yield _row(["generation", "target", "examples", "FP16", "BF16", "matrix", "choose", "from"])
    for row in table.generations:
        yield _row(
            [
                (row.name if row.name.startswith(row.vendor) else f"{row.vendor} {row.name}")
                + "*" * row.inferred,
                ", ".join(row.targets),
                ", ".join(row.cards),
                row.fp16,
                row.bf16,
                _yes(row.matrix),
                choose(table.hardware(row, row.name)).precision,
                ", ".join(numbers[key] for key in row.sources),
            ]
        )
    yield _row(["flag", "name", "format", "arithmetic", "from"])
    for flag in table.processor_features:
        sources = ", ".join(numbers[key] for key in flag.sources)
        yield _row([f"`{flag.flag}`", flag.name, flag.format, _yes(flag.arithmetic), sources])
    for number, document in enumerate(table.documents.values(), 1):
        yield f"{number}. {document.name}: {document.where}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
