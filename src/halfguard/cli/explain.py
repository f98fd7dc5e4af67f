"""``halfguard explain``: how a number is stored in each format, and what is lost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from halfguard.numerics.explanation import Explanation, Row

app = typer.Typer(add_completion=False)


# "-1e9" and "-tanh(3)" are expressions: what is no option is passed on. "-h" must not be one here,
# since it would be found inside "-tanh".
@app.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
def explain(
    context: typer.Context,
    expression: Annotated[
        list[str],
        typer.Argument(metavar="EXPR", help="A number or arithmetic: 1e-8, -1e9, 'exp(12)'."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how a number is stored in each format, and what is lost.

    An expression is evaluated exactly, and as code that runs in the format evaluates it. Most
    shells want parentheses and * in quotes.
    """
    if expression == ["-h"]:
        typer.echo(context.get_help())
        return

    from halfguard.numerics.explain import explain as explain_text  # noqa: PLC0415

    explanation = explain_text(" ".join(expression))
    if as_json:
        import json  # noqa: PLC0415

        typer.echo(json.dumps(_as_json(explanation), allow_nan=False, indent=2))
    else:
        _print(explanation)


def _as_json(explanation: Explanation) -> dict[str, Any]:
    from halfguard.numerics.explanation import show  # noqa: PLC0415

    return {
        "kind": "explanation",
        "schema_version": 1,
        "expression": explanation.text,
        "exact": show(explanation.value, digits=17),
        "formats": [
            {
                "name": row.format.name,
                "dtype": row.format.dtype,
                "stored": _number(row.stored),
                "computed": _number(row.computed),
                "relative_error": _number(row.relative_error),
                "state": row.state.value,
            }
            for row in explanation.rows
        ],
        "sentences": list(explanation.sentences),
    }


def _number(x: float | None) -> float | str | None:
    """JSON has no word for NaN and infinity: they are strings, spelled as in every record."""
    if x is None or math.isfinite(x):
        return x
    return "NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity"


def _print(explanation: Explanation) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from halfguard.numerics.explanation import show  # noqa: PLC0415

    console = Console(highlight=False, markup=False)
    is_literal = explanation.node.is_literal
    exact = "" if is_literal else f" = {show(explanation.value, 12)}"
    console.print(f"{explanation.text}{exact}", style="bold")
    console.print(_table(explanation.rows, with_computed=not is_literal))
    sentences = Table.grid(padding=(0, 1))  # a grid, so that long sentences hang from their dash
    for sentence in explanation.sentences:
        sentences.add_row("-", sentence)
    console.print(sentences)


def _table(rows: tuple[Row, ...], *, with_computed: bool) -> Table:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from halfguard.numerics.explanation import percent, show  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("format")
    for heading in ("computed", "stored", "error") if with_computed else ("stored", "error"):
        table.add_column(heading, justify="right")
    table.add_column("state")
    for row in rows:
        text, style = _state(row)
        computed = "" if row.computed is None else show(row.computed)
        numbers = [computed] * with_computed + [show(row.stored), percent(row.relative_error)]
        table.add_row(row.format.name, *numbers, text, style=style)
    return table


def _state(row: Row) -> tuple[str, str]:
    """Return the words and the colour for what became of a value."""
    from halfguard.numerics.explanation import State  # noqa: PLC0415

    top = "inf" if row.format.has_infinity else f"NaN or {row.format.largest:g}"
    return {
        State.EXACT: ("exact", "green"),
        State.ROUNDED: ("rounded", ""),
        State.SUBNORMAL: ("subnormal", "yellow"),
        State.UNDERFLOW: ("underflow to 0", "red"),
        State.OVERFLOW: (f"overflow to {top}", "red"),
        State.LOST: ("0: lost on the way", "red"),
        State.NAN: ("NaN", "red"),
    }[row.state]
