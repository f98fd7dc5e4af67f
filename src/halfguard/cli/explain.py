"""``halfguard explain``: show how each format stores a number, and what is lost."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from halfguard.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from halfguard.numerics.explanation import Explanation, FormatResult

app = typer.Typer(add_completion=False)


# "-1e9" and "-tanh(3)" are expressions, so unknown options are passed on. "-h" must not be an
# option here, since it would be found inside "-tanh".
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

    An expression is evaluated exactly, and with every step rounded to the format. In most
    shells, put parentheses and * in quotes.
    """
    if expression == ["-h"]:
        typer.echo(context.get_help())
        return

    if len(expression) == 1 and (rule := re.fullmatch(r"HG\d{3}", expression[0].upper())):
        raise UsageError(
            f"{rule[0]} is a rule of lint, not a number.",
            cure=f"halfguard rule {rule[0]} explains it.",
        )
    from halfguard.numerics.explain import explain as explain_text  # noqa: PLC0415

    explanation = explain_text(" ".join(expression))
    if as_json:
        import json  # noqa: PLC0415

        typer.echo(json.dumps(_as_json(explanation), allow_nan=False, indent=2))
    else:
        _print(explanation)


def _as_json(explanation: Explanation) -> dict[str, Any]:
    from halfguard.numerics.explanation import show_number  # noqa: PLC0415

    return {
        "kind": "explanation",
        "schema_version": 1,
        "expression": explanation.text,
        "exact": show_number(explanation.value, digits=17),
        "formats": [
            {
                "name": result.format.name,
                "dtype": result.format.dtype,
                "stored": _json_number(result.stored),
                "computed": _json_number(result.computed),
                "relative_error": _json_number(result.relative_error),
                "state": result.state.value,
            }
            for result in explanation.results
        ],
        "sentences": list(explanation.sentences),
    }


def _json_number(x: float | None) -> float | str | None:
    """Write NaN and infinity, which JSON lacks, as strings, spelled as in every record."""
    if x is None or math.isfinite(x):
        return x
    return "NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity"


def _print(explanation: Explanation) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from halfguard.numerics.explanation import show_number  # noqa: PLC0415

    console = Console(highlight=False, markup=False)
    is_literal = explanation.node.is_literal
    exact = "" if is_literal else f" = {show_number(explanation.value, 12)}"
    console.print(f"{explanation.text}{exact}", style="bold")
    console.print(_table(explanation.results, with_computed=not is_literal))
    sentences = Table.grid(padding=(0, 1))  # a grid indents the later lines of long sentences
    for sentence in explanation.sentences:
        sentences.add_row("-", sentence)
    console.print(sentences)


def _table(results: tuple[FormatResult, ...], *, with_computed: bool) -> Table:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from halfguard.numerics.explanation import percent, show_number  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("format")
    for heading in ("computed", "stored", "error") if with_computed else ("stored", "error"):
        table.add_column(heading, justify="right")
    table.add_column("state")
    for result in results:
        text, style = _describe_state(result)
        computed = "" if result.computed is None else show_number(result.computed)
        stored, error = show_number(result.stored), percent(result.relative_error)
        numbers = [computed] * with_computed + [stored, error]
        table.add_row(result.format.name, *numbers, text, style=style)
    return table


def _describe_state(result: FormatResult) -> tuple[str, str]:
    """Return the text and the colour for the state of a value."""
    from halfguard.numerics.explanation import Rounding  # noqa: PLC0415

    top = "inf" if result.format.has_infinity else f"NaN or {result.format.largest:g}"
    return {
        Rounding.EXACT: ("exact", "green"),
        Rounding.ROUNDED: ("rounded", ""),
        Rounding.SUBNORMAL: ("subnormal", "yellow"),
        Rounding.UNDERFLOW: ("underflow to 0", "red"),
        Rounding.OVERFLOW: (f"overflow to {top}", "red"),
        Rounding.LOST: ("0: lost in a step", "red"),
        Rounding.NAN: ("NaN", "red"),
    }[result.state]
