"""``halfguard validate``: compare 16-bit training with FP32, and sign off the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

if TYPE_CHECKING:
    from halfguard.cli.bars import Bar
    from halfguard.validation.spec import Spec
    from halfguard.validation.study import OnProgress, Progress


class _SpecOrCommand(typer.core.TyperGroup):
    """``halfguard validate SPEC.yaml`` is short for ``halfguard validate run SPEC.yaml``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_SpecOrCommand,
    add_completion=False,
    no_args_is_help=True,
    help="Compare 16-bit training with FP32: halfguard validate SPEC.yaml",
)


@app.command()
def run(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC", help="YAML file that describes the study.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for runs and reports; default: runs/NAME."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Run or resume a study, and print the verdict on every candidate.

    Exit code 0: every candidate passes; 1: at least one does not; 2: usage error; 130: ended by Ctrl-C.
    """
    from halfguard.cli.bars import progress  # noqa: PLC0415
    from halfguard.cli.pages import print_page  # noqa: PLC0415
    from halfguard.cli.torch_extra import torch_needed  # noqa: PLC0415

    with torch_needed("halfguard validate", extra="validate"):
        from halfguard.validation.spec import Spec  # noqa: PLC0415
        from halfguard.validation.study import missing_tasks  # noqa: PLC0415
        from halfguard.validation.validate import default_folder, run_validation  # noqa: PLC0415
    checked = Spec.load(spec)
    folder = output or default_folder(checked)
    bar: Bar | None = None
    try:
        with progress(checked.name, len(missing_tasks(checked, folder))) as bar:
            verdict, page = run_validation(checked, folder, None, _show_progress(bar, checked))
    except KeyboardInterrupt:
        count = "" if bar is None or not bar.total else f" after {bar.done} of {bar.total} runs"
        ran = f"Interrupted{count}"
        typer.echo(
            f"{ran}. Finished runs are kept in {folder}; run the same command to resume.", err=True
        )
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(verdict.to_json())
    else:
        print_page(page)
        typer.echo(f"\nFull report: {folder / 'report.html'}")
    raise typer.Exit(verdict.exit_code)


@app.command()
def approve(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a study.")],
    by: Annotated[str, typer.Option(help="Name of the person who has read the report.")],
) -> None:
    """Sign off a study. The sign-off becomes void if the study changes afterwards."""
    from halfguard.cli.torch_extra import torch_needed  # noqa: PLC0415
    from halfguard.validation.study_files import approve as sign_off  # noqa: PLC0415

    with torch_needed("halfguard validate approve", extra="validate"):
        signed = sign_off(folder, by)
    typer.echo(
        f"Signed by {signed.by} at {signed.at}: {signed.word}, evidence {signed.evidence[:12]}."
    )


def _show_progress(bar: Bar, spec: Spec) -> OnProgress:
    def show(progress: Progress) -> None:
        if progress.last is not None:
            bar.advance()
        left = progress.seconds_left
        time_left = "" if left is None else f", about {_duration(left)} left"
        bar.describe(f"{spec.name}{time_left}, runs")

    return show


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{seconds / 3600:.1f} h"
