"""Save a page to files, and print it in the terminal, without its drawings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from halfguard.report.blocks import Block, Page, Table

_STYLES = {"good": "green", "bad": "red", "": ""}
_SHORT = 14  # characters of a word that is never wrapped, such as INCONCLUSIVE


def check_folders(**files: Path | None) -> None:
    """Raise a usage error if the folder of an option's file does not exist, before anything is computed."""
    for option, path in files.items():
        if path is not None and not path.resolve().parent.is_dir():
            message = f"the folder of {path} does not exist"
            raise typer.BadParameter(message, param_hint=f"--{option}")


def show_page(
    page_for: Callable[[Path | None], Page],
    json: str,
    markdown: Path | None,
    html: Path | None,
    *,
    as_json: bool,
) -> None:
    """Save a page to the files that were named, and print it, or ``json``.

    ``page_for`` makes the page of a file, whose links depend on its folder, or of the terminal.
    """
    from halfguard.records import write_atomically  # noqa: PLC0415
    from halfguard.report.html import to_html  # noqa: PLC0415
    from halfguard.report.markdown import to_markdown  # noqa: PLC0415

    for path, write in ((markdown, to_markdown), (html, to_html)):
        if path is not None:
            write_atomically(path, write(page_for(path)))
    if as_json:
        typer.echo(json)
    else:
        print_page(page_for(None))


def print_page(page: Page) -> None:
    """Print a page; its text cannot control the terminal."""
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from halfguard.report.blocks import Code, Heading, clean, without_figures  # noqa: PLC0415

    console = Console(highlight=False, markup=False, emoji=False)
    console.print(Text(clean(page.title), style="bold"))
    for block in without_figures(page.blocks):
        if isinstance(block, Heading):
            console.print()
        if isinstance(block, Code):
            _print_code(console, clean(block.text))
        else:
            console.print(_block(block, console.width))


def _print_code(console: Console, text: str) -> None:
    """Print lines as they are, neither wrapped nor padded: they are copied. A patch begins at the margin."""
    from rich.text import Text  # noqa: PLC0415

    from halfguard.records.autopsy import is_source_patch  # noqa: PLC0415

    margin = "" if is_source_patch(text) else "    "
    for line in text.splitlines():
        console.print(Text(margin + line), soft_wrap=True)


def _block(block: Block, width: int) -> RenderableType:
    from rich.text import Text  # noqa: PLC0415

    from halfguard.report import blocks as b  # noqa: PLC0415

    match block:
        case b.Heading(text):
            return Text(b.clean(text), style="bold cyan")
        case b.Text(parts, tone):
            return Text(b.clean("".join(parts)), style=_STYLES[tone])
        case b.Listing(items):
            return Text("\n".join(f"- {b.clean(item)}" for item in items))
        case b.Table():
            return _table(block) if _least_width(block) <= width else _paragraphs(block)
        case _:  # code is printed as it is, and drawings are left out
            return Text()


def _least_width(table: Table) -> int:
    """Return the width at which every word of a table is whole."""
    columns = zip(table.heads, *table.rows, strict=True)
    words = [max(len(word) for cell in cells for word in (*cell.split(), "")) for cells in columns]
    return sum(words) + 3 * len(words) - 1


def _paragraphs(table: Table) -> RenderableType:
    """Return a row as a paragraph, where a table would break names into pieces."""
    from rich.text import Text  # noqa: PLC0415

    from halfguard.report.blocks import clean  # noqa: PLC0415

    tones = table.tones or [""] * len(table.rows)
    shown = Text()
    for row, tone in zip(table.rows, tones, strict=True):
        cells = [
            f"{head} {cell}" for head, cell in zip(table.heads, row, strict=True) if cell.strip()
        ]
        shown.append(clean("- " + "; ".join(cells)) + "\n", style=_STYLES[tone])
    shown.rstrip()
    return shown


def _table(table: Table) -> RenderableType:
    from rich import box  # noqa: PLC0415
    from rich.table import Table as Shown  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from halfguard.report.blocks import clean  # noqa: PLC0415

    shown = Shown(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, head in enumerate(table.heads):
        cells = (head, *(row[index] for row in table.rows))
        short = all(" " not in cell and len(cell) <= _SHORT for cell in cells)
        shown.add_column(clean(head), overflow="fold", no_wrap=short)
    tones = table.tones or [""] * len(table.rows)
    for row, tone in zip(table.rows, tones, strict=True):
        shown.add_row(*(Text(clean(cell)) for cell in row), style=_STYLES[tone])
    return shown
