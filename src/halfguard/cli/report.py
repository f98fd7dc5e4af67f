"""``halfguard report``: what happened in a run, also while it goes on, or what a study has proved."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from halfguard.report.blocks import Page

app = typer.Typer(add_completion=False)


class _Found(NamedTuple):
    page: Callable[[str], Page]  # given where the folder lies, seen from the page
    json: str
    exit_code: int


@app.command()
def report(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="Folder of a run, such as runs/exp1.")
    ],
    html: Annotated[Path | None, typer.Option(help="Save the page here, curves drawn.")] = None,
    markdown: Annotated[
        Path | None, typer.Option("--md", "--markdown", help="Save the page here as Markdown.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what happened in a run: loss, gradient norm and scale, every unusual step with its cause.

    For the folder of a study: its verdict, and what its sign-off is worth now.

    Exit code 0: read, and a study passes; 1: a part is damaged, or a study does not pass; 2: a mistake
    in the call.
    """
    for path, option in ((markdown, "--md"), (html, "--html")):
        if path is not None and not path.resolve().parent.is_dir():
            raise typer.BadParameter(f"the folder of {path} does not exist", param_hint=option)
    from halfguard.cli.pages import print_page  # noqa: PLC0415
    from halfguard.records import write_whole  # noqa: PLC0415
    from halfguard.report import to_html, to_markdown  # noqa: PLC0415

    found = _study(run_dir) if (run_dir / "study.json").is_file() else _run(run_dir)
    if markdown is not None:
        write_whole(markdown, to_markdown(found.page(_seen_from(markdown, run_dir))))
    if html is not None:
        write_whole(html, to_html(found.page(_seen_from(html, run_dir))))
    if as_json:
        typer.echo(found.json)
    else:
        print_page(found.page("."))
    raise typer.Exit(found.exit_code)


def _run(run_dir: Path) -> _Found:
    from halfguard.cli.stories import read  # noqa: PLC0415
    from halfguard.report import run_page  # noqa: PLC0415

    story = read(run_dir)
    return _Found(
        lambda folder: run_page(story, folder), story.to_json(), 1 if story.problems else 0
    )


def _study(folder: Path) -> _Found:
    from halfguard.records.study import Study  # noqa: PLC0415
    from halfguard.report import study_page  # noqa: PLC0415
    from halfguard.validation.approval import read_verdict, standing  # noqa: PLC0415

    study = Study.from_json((folder / "study.json").read_bytes())
    verdict = read_verdict(folder)
    page = study_page(study, verdict, standing(folder))
    return _Found(lambda _: page, verdict.to_json(), verdict.exit_code)


def _seen_from(page: Path, run_dir: Path) -> str:
    return Path(os.path.relpath(run_dir.resolve(), page.resolve().parent)).as_posix()
