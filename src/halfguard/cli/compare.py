"""``halfguard compare``: the verdict on runs that a tracker logged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from halfguard.cli.pages import check_folders, show_page


def compare(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="BASELINE CANDIDATE...",
            help="Files or folders with logged runs, or quoted patterns; PATH:KEY=VALUE selects runs.",
        ),
    ],
    metric: Annotated[str, typer.Option(help="Name of the logged metric, such as val/loss.")],
    higher_is_better: Annotated[
        bool | None,
        typer.Option(
            "--higher-is-better/--lower-is-better",
            help="Default: inferred from a name such as loss or accuracy.",
        ),
    ] = None,
    at: Annotated[
        str, typer.Option(help="Value of each run: last, best, or tail (mean of the last fifth).")
    ] = "last",
    any_length: Annotated[
        bool, typer.Option("--any-length", help="Allow pairs that end at different steps.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Save the page as HTML, with curves.")] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Save the page as Markdown.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare logged runs, paired by seed, and print the verdict on every candidate.

    Reads TensorBoard event files, wandb's run files, MLflow's SQLite store, metrics.csv of Lightning's
    CSVLogger, and trainer_state.json of transformers. Nothing is trained. The first three are read with
    the tracker's own package.

    Exit code 0: every candidate passes; 1: at least one does not; 2: usage error.
    """
    check_folders(markdown=markdown, html=html)
    from halfguard.cli.bars import progress  # noqa: PLC0415
    from halfguard.cli.torch_extra import torch_needed  # noqa: PLC0415

    with torch_needed("halfguard compare", extra="trackers"):
        from halfguard.comparison.compare import CompareOptions  # noqa: PLC0415
        from halfguard.comparison.compare import compare as compare_runs  # noqa: PLC0415
        from halfguard.comparison.logged_run import At  # noqa: PLC0415
        from halfguard.comparison.page import comparison_page  # noqa: PLC0415
    if at not in list(At):
        raise typer.BadParameter(f"{at!r} is not one of {', '.join(At)}", param_hint="--at")
    options = CompareOptions(
        metric=metric,
        higher_is_better=higher_is_better,
        at=At(at),
        any_length=any_length,
    )
    with progress("Reading the logs"):
        result, groups = compare_runs(places, options)
    page = comparison_page(result, groups)
    show_page(lambda _: page, result.to_json(), markdown, html, as_json=as_json)
    raise typer.Exit(result.verdict.exit_code)
