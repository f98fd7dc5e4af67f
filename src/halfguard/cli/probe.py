"""``halfguard probe``: measure the range of every layer before training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from halfguard.cli.pages import check_folders, show_page

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from halfguard.records.ranges import LayerRange, ProbeReport

app = typer.Typer(add_completion=False)
ROWS = 20


@app.command()
def probe(
    entry: Annotated[
        str, typer.Argument(metavar="ENTRY", help="file.py:function or module:function.")
    ],
    steps: Annotated[int, typer.Option(help="Number of training steps.", min=1)] = 20,
    precision: Annotated[
        str, typer.Option(help="fp32, or fp16-mixed to see where it breaks.")
    ] = "fp32",
    digits: Annotated[
        bool, typer.Option("--digits", help="Show which lines lose digits, in FP16 or --precision.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Save all results as one HTML page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a few steps and show which layers leave the range of FP16, or which lines lose digits in it.

    Ctrl-C ends it after the current step; the report has the steps so far.

    Exit code 0: nothing found; 1: findings; 2: usage error; 130: ended by Ctrl-C.
    """
    check_folders(html=html)
    from halfguard.cli.bars import first_interrupt, progress  # noqa: PLC0415
    from halfguard.cli.torch_extra import torch_needed  # noqa: PLC0415
    from halfguard.report import rounding_page  # noqa: PLC0415

    with torch_needed("halfguard probe"):
        from halfguard.probing.probe import probe as run  # noqa: PLC0415
        from halfguard.workload import load  # noqa: PLC0415
        from halfguard.workload.rounding import rounding_of_job as rounding  # noqa: PLC0415
        from halfguard.workload.training import StopTraining  # noqa: PLC0415
    with (
        progress(f"probe in {precision}, steps", steps) as bar,
        first_interrupt("the report has the steps up to this one") as interrupt,
    ):

        def advance() -> None:
            bar.advance()
            if interrupt.requested:
                raise StopTraining

        workload = load(entry)
        if digits:
            found = rounding(
                workload,
                steps=steps,
                precision="fp16-mixed" if precision == "fp32" else precision,
                advance=advance,
            )
            show_page(
                lambda _: rounding_page(found, entry), found.to_json(), None, html, as_json=as_json
            )
            raise typer.Exit(1 if found.findings else 0)
        report = run(workload, steps=steps, precision=precision, advance=advance)
    if interrupt.requested:
        typer.echo(f"Interrupted after {report.steps} of {steps} steps.", err=True)
    if html is not None:
        from halfguard.records import write_atomically  # noqa: PLC0415
        from halfguard.report import probe_page, to_html  # noqa: PLC0415

        write_atomically(html, to_html(probe_page(report, entry)))
    if as_json:
        typer.echo(report.to_json())
    else:
        _print(report)
    raise typer.Exit(130 if interrupt.requested else 1 if report.problems else 0)


def _print(report: ProbeReport) -> None:
    from rich.console import Console  # noqa: PLC0415

    console = Console(highlight=False, markup=False)
    window = report.window
    fits = f"{window.low:g} to {window.high:g}" if window else "none fits all layers"
    console.print(
        f"{report.steps} steps in {report.precision}, {len(report.layers)} layers; "
        f"loss {report.losses[0]:.4g} to {report.losses[-1]:.4g}"
    )
    console.print(f"loss scale: {fits}; best {report.best_scale:g}, current {report.scale:g}")
    console.print("headroom in bits, and the share of gradients that vanish:")
    ordered = sorted(report.layers, key=lambda layer: layer.least_headroom(report.best_scale))
    shown = ordered[:ROWS]
    console.print(_table(shown, report))
    if len(shown) < len(ordered):
        rest = len(ordered) - len(shown)
        console.print(
            f"{rest} layers with more headroom are not shown; --html and --json list them."
        )
    _print_findings(report, console)


def _table(layers: list[LayerRange], report: ProbeReport) -> Table:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("layer", overflow="fold")
    for head in ("forward", "backward", "lost now", "at best", "scales"):
        table.add_column(head, justify="right")
    for layer in layers:
        tight = layer.forward_headroom
        table.add_row(
            layer.module or "(model)",
            _bits(tight),
            _bits(layer.backward_headroom(report.best_scale)),
            f"{layer.underflow_now:.1%}",
            f"{layer.underflow_best:.1%}",
            layer.scales,
            style="red" if tight < 0 or not layer.fits else "yellow" if tight < 1 else "",
        )
    return table


def _bits(value: float) -> str:
    return "-" if value == float("inf") else f"{value:.1f}"


def _print_findings(report: ProbeReport, console: Console) -> None:
    from rich.table import Table  # noqa: PLC0415

    grid = Table.grid(padding=(0, 1))
    styles = {"error": "red", "warning": "yellow", "note": ""}
    for found in report.findings:
        grid.add_row(found.code, f"{found.message} {found.why}", style=styles[found.severity])
    cures = dict.fromkeys(found.cure for found in report.findings if found.cure)
    console.print(grid if report.findings else "No findings.")
    for cure in cures:
        console.print(f"- {cure}")
