"""``halfguard report``: show what happened in a run, finished or not, or the verdict of a study."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from halfguard.cli.pages import check_folders, show_page

if TYPE_CHECKING:
    from halfguard.report.blocks import Page


class _Report(NamedTuple):
    page: Callable[[str], Page]  # takes the path from the page to the folder, for links
    json: str
    exit_code: int


def report(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="Folder of a run, such as runs/exp1.")
    ],
    html: Annotated[Path | None, typer.Option(help="Save the report as HTML, with curves.")] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Save the report as Markdown.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what happened in a run: loss, gradient norm, loss scale, and the cause of every unusual step.

    For the folder of a study, show its verdict and whether its sign-off is still valid.

    Exit code 0: the run was read, or the study passes; 1: a file is damaged, or the study does not pass;
    2: usage error.
    """
    check_folders(markdown=markdown, html=html)
    found = _study(run_dir) if (run_dir / "study.json").is_file() else _run(run_dir)

    def page_for(file: Path | None) -> Page:
        return found.page("." if file is None else _link_base(file, run_dir))

    show_page(page_for, found.json, markdown, html, as_json=as_json)
    raise typer.Exit(found.exit_code)


def _run(run_dir: Path) -> _Report:
    from halfguard.journal.run_folder import read_run  # noqa: PLC0415
    from halfguard.report.run import run_page  # noqa: PLC0415

    run = read_run(run_dir)
    return _Report(lambda folder: run_page(run, folder), run.to_json(), 1 if run.problems else 0)


def _study(folder: Path) -> _Report:
    from halfguard.validation.study_files import (  # noqa: PLC0415
        page_of_study,
        read_study,
        read_verdict,
    )

    verdict = read_verdict(folder)
    page = page_of_study(folder, read_study(folder), verdict)
    return _Report(lambda _: page, verdict.to_json(), verdict.exit_code)


def _link_base(page: Path, run_dir: Path) -> str:
    return Path(os.path.relpath(run_dir.resolve(), page.resolve().parent)).as_posix()
