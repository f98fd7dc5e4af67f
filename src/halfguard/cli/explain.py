"""``halfguard explain``: show how each format stores a number, and what is lost."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from halfguard.errors import UsageError

if TYPE_CHECKING:
    from halfguard.numerics.explain import Explanation

app = typer.Typer(add_completion=False)

_COLOURS = {"exact": "green", "rounded": "", "subnormal": "yellow"}  # all other states are red


# "-1e9" and "-exp(3)" are expressions, so unknown options are passed on.
@app.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}
)
def explain(
    expression: Annotated[
        list[str],
        typer.Argument(metavar="EXPR", help="A number or arithmetic: 1e-8, -1e9, 'exp(12)'."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how a number is stored in each format, and what is lost.

    An expression is evaluated exactly, and with every step rounded to the format. In most
    shells, put parentheses and * in quotes.
    """
    if len(expression) == 1 and (rule := re.fullmatch(r"HG\d{3}", expression[0].upper())):
        raise UsageError(
            f"{rule[0]} is a rule of lint, not a number.",
            cure=f"halfguard rule {rule[0]} explains it.",
        )
    from halfguard.numerics.explain import explain as explain_text  # noqa: PLC0415

    explanation = explain_text(" ".join(expression))
    if as_json:
        import json  # noqa: PLC0415

        typer.echo(json.dumps(_as_json(explanation), indent=2))
    else:
        _print(explanation)


def _as_json(explanation: Explanation) -> dict[str, Any]:
    from halfguard.numerics.explain import show_number  # noqa: PLC0415

    return {
        "kind": "explanation",
        "schema_version": 1,
        "expression": explanation.text,
        "exact": show_number(explanation.value, 17),
        "formats": [
            {
                "name": row.format.name,
                "dtype": row.format.dtype,
                "stored": _json_number(row.stored),
                "computed": _json_number(row.computed),
                "relative_error": _json_number(row.error),
                "state": row.state,
            }
            for row in explanation.rows.values()
        ],
        "sentences": explanation.sentences,
    }


def _json_number(x: float | None) -> float | str | None:
    """Write NaN and infinity, which JSON lacks, as strings, spelled as in every record."""
    if x is None or math.isfinite(x):
        return x
    return "NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity"


def _print(explanation: Explanation) -> None:
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from halfguard.numerics.explain import percent, show_number  # noqa: PLC0415

    is_computed = not explanation.is_literal
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("format")
    for heading in ("computed", "stored", "error") if is_computed else ("stored", "error"):
        table.add_column(heading, justify="right")
    table.add_column("state")
    for row in explanation.rows.values():
        computed = "" if row.computed is None else show_number(row.computed)
        numbers = [computed] * is_computed + [show_number(row.stored), percent(row.error)]
        table.add_row(row.format.name, *numbers, row.state, style=_COLOURS.get(row.state, "red"))
    sentences = Table.grid(padding=(0, 1))  # a grid indents the later lines of long sentences
    for sentence in explanation.sentences:
        sentences.add_row("-", sentence)
    console = Console(highlight=False, markup=False)
    exact = f" = {show_number(explanation.value, 12)}" if is_computed else ""
    console.print(f"{explanation.text}{exact}", style="bold")
    console.print(table, sentences, sep="\n")
