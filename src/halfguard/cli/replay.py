"""``halfguard replay``: repeat a bad step from its incident, and find what would have prevented it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from halfguard.records.autopsy import Autopsy

app = typer.Typer(add_completion=False)


@app.command()
def replay(
    incident: Annotated[
        Path, typer.Argument(metavar="INCIDENT", help="Folder, such as runs/a/incidents/000123-r0.")
    ],
    entry: Annotated[
        str | None,
        typer.Option(metavar="ENTRY", help="file.py:function; default: the entry in the incident."),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(
            min=0,
            help="Train on this many steps with the best three changes and with FP32; try 50.",
        ),
    ] = 0,
    markdown: Annotated[Path | None, typer.Option(help="Save the report as Markdown.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Save the report as HTML, with drawings.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Repeat a bad step, find where it began, and try changes that could have prevented it.

    Exit code 0: a change makes the step good; 1: none does, or the step did not break again; 2: usage error.
    """
    for path, option in ((markdown, "--markdown"), (html, "--html")):
        if path is not None and not path.resolve().parent.is_dir():
            raise typer.BadParameter(f"the folder of {path} does not exist", param_hint=option)
    autopsy = _run(incident, entry, steps)
    from halfguard.cli.pages import print_page  # noqa: PLC0415
    from halfguard.records import write_atomically  # noqa: PLC0415
    from halfguard.report import autopsy_page, to_html, to_markdown  # noqa: PLC0415

    page = autopsy_page(autopsy)
    if markdown is not None:
        write_atomically(markdown, to_markdown(page))
    if html is not None:
        write_atomically(html, to_html(page))
    if as_json:
        typer.echo(autopsy.to_json())
    else:
        print_page(page)
    raise typer.Exit(0 if autopsy.cure is not None else 1)


def _run(incident: Path, entry: str | None, steps: int) -> Autopsy:
    from halfguard.cli.bars import progress  # noqa: PLC0415
    from halfguard.cli.torch_extra import torch_needed  # noqa: PLC0415

    with torch_needed("halfguard replay"):
        from halfguard.replaying import replay as run  # noqa: PLC0415
    with progress("replay") as bar:

        def watch(doing: str) -> None:
            bar.describe(doing)
            bar.advance()

        return run(incident, entry, steps=steps, watch=watch)
