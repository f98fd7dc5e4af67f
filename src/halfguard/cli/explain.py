"""``halfguard explain``: show how each format stores a number, and what is lost."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from halfguard.errors import UsageError

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
    _print(" ".join(expression))


def _print(text: str) -> None:
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from halfguard.numerics.explain import explain, percent, show_number  # noqa: PLC0415

    explanation = explain(text)
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
