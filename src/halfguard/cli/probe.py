"""``halfguard probe``: measure the range of every layer before training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from halfguard.cli.pages import check_folders, show_page

if TYPE_CHECKING:
    from halfguard.records.ranges import ProbeReport
    from halfguard.report.blocks import Page

ROWS = 20  # layers that the terminal shows


def probe(
    entry: Annotated[
        str, typer.Argument(metavar="ENTRY", help="file.py:function or module:function.")
    ],
    steps: Annotated[int, typer.Option(help="Number of training steps.", min=1)] = 20,
    precision: Annotated[
        str, typer.Option(help="fp32, or fp16-mixed to see where it breaks.")
    ] = "fp32",
    digits: Annotated[
        bool,
        typer.Option("--digits", help="Show which lines lose accuracy, in FP16 or --precision."),
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Save all results as one HTML page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a few steps and show which layers exceed the range of FP16, or which lines lose digits.

    Exit code 0: nothing found; 1: findings; 2: usage error.
    """
    check_folders(html=html)
    from halfguard.cli.bars import progress  # noqa: PLC0415
    from halfguard.cli.torch_extra import torch_needed  # noqa: PLC0415
    from halfguard.records.rounding import RoundingReport  # noqa: PLC0415
    from halfguard.report.probe import probe_page  # noqa: PLC0415
    from halfguard.report.rounding import rounding_page  # noqa: PLC0415

    with torch_needed("halfguard probe"):
        from halfguard.probing.probe import probe as run  # noqa: PLC0415
        from halfguard.workload import load  # noqa: PLC0415
        from halfguard.workload.rounding import rounding_of_job as rounding  # noqa: PLC0415
    with progress(f"probe in {precision}, steps", steps) as bar:
        workload = load(entry)
        found: ProbeReport | RoundingReport
        if digits:
            half = "fp16-mixed" if precision == "fp32" else precision
            found = rounding(workload, steps=steps, precision=half, advance=bar.advance)
        else:
            found = run(workload, steps=steps, precision=precision, advance=bar.advance)

    def page_for(path: Path | None) -> Page:
        if isinstance(found, RoundingReport):
            return rounding_page(found, entry)
        return probe_page(found, entry, ROWS if path is None else None)

    show_page(page_for, found.to_json(), None, html, as_json=as_json)
    bad = found.findings if isinstance(found, RoundingReport) else found.problems
    raise typer.Exit(1 if bad else 0)
