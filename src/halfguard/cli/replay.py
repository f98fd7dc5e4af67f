"""``halfguard replay``: repeat a bad step from its incident, and find what would have prevented it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from halfguard.cli.pages import check_folders, show_page

if TYPE_CHECKING:
    from halfguard.records.autopsy import Autopsy


def replay(
    incident: Annotated[
        Path, typer.Argument(metavar="INCIDENT", help="Folder, such as runs/a/incidents/000123-r0.")
    ],
    entry: Annotated[
        str | None,
        typer.Option(metavar="ENTRY", help="file.py:function; default: the entry in the incident."),
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Save the report as Markdown.")] = None,
    html: Annotated[Path | None, typer.Option(help="Save the report as HTML.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Repeat a failed step, find where the failure began, and test changes that could prevent it.

    Exit code 0: a change fixes the step; 1: no change does, or the step did not fail again; 2: usage error.
    """
    check_folders(markdown=markdown, html=html)
    found = _run(incident, entry)
    from halfguard.report.autopsy import autopsy_page  # noqa: PLC0415

    page = autopsy_page(found)
    show_page(lambda _: page, found.to_json(), markdown, html, as_json=as_json)
    raise typer.Exit(0 if found.cure is not None else 1)


def _run(incident: Path, entry: str | None) -> Autopsy:
    from halfguard.cli.bars import progress  # noqa: PLC0415
    from halfguard.cli.torch_extra import torch_needed  # noqa: PLC0415

    with torch_needed("halfguard replay"):
        from halfguard.replaying.autopsy import replay as run  # noqa: PLC0415
    with progress("replay") as bar:

        def watch(doing: str) -> None:
            bar.describe(doing)
            bar.advance()

        return run(incident, entry, watch=watch)
