"""``halfguard compare``: the verdict on runs that a tracker logged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
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
            help="Default: told by a name such as loss or accuracy.",
        ),
    ] = None,
    at: Annotated[
        str, typer.Option(help="Value of each run: last, best, or tail (mean of the last fifth).")
    ] = "last",
    until: Annotated[
        int | None, typer.Option(help="Ignore what was logged after this step.", metavar="STEP")
    ] = None,
    any_length: Annotated[
        bool, typer.Option("--any-length", help="Allow pairs that end at different steps.")
    ] = False,
    seed_key: Annotated[
        str | None, typer.Option(help="Setting of the run that has its seed.", metavar="NAME")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Save the page as HTML, with curves.")] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Save the page as Markdown.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare logged runs, paired by seed, and print validate's verdict on every candidate.

    Reads TensorBoard event files, wandb's run files, MLflow's SQLite store, metrics.csv of Lightning's
    CSVLogger, and trainer_state.json of transformers. Nothing is trained. The first three are read with
    the tracker's own package.

    Exit code 0: every candidate passes; 1: one does not; 2: usage error.
    """
    for path, option in ((markdown, "--markdown"), (html, "--html")):
        if path is not None and not path.resolve().parent.is_dir():
            raise typer.BadParameter(f"the folder of {path} does not exist", param_hint=option)
    from halfguard.cli.bars import progress  # noqa: PLC0415
    from halfguard.cli.pages import print_page  # noqa: PLC0415
    from halfguard.cli.torch_extra import torch_needed  # noqa: PLC0415
    from halfguard.records import write_atomically  # noqa: PLC0415
    from halfguard.report import to_html, to_markdown  # noqa: PLC0415

    with torch_needed("halfguard compare", extra="trackers"):
        from halfguard.comparison.compare import CompareOptions  # noqa: PLC0415
        from halfguard.comparison.compare import compare as compare_runs  # noqa: PLC0415
        from halfguard.comparison.logged_run import At  # noqa: PLC0415
        from halfguard.comparison.page import comparison_page  # noqa: PLC0415
    if at not in list(At):
        raise typer.BadParameter(f"{at!r} is none of {', '.join(At)}", param_hint="--at")
    options = CompareOptions(
        metric=metric,
        higher_is_better=higher_is_better,
        at=At(at),
        until=until,
        any_length=any_length,
        seed_key=seed_key,
    )
    with progress("Reading the logs"):
        result, groups = compare_runs(places, options)
    page = comparison_page(result, groups)
    if markdown is not None:
        write_atomically(markdown, to_markdown(page))
    if html is not None:
        write_atomically(html, to_html(page))
    if as_json:
        typer.echo(result.to_json())
    else:
        print_page(page)
    raise typer.Exit(result.verdict.exit_code)
