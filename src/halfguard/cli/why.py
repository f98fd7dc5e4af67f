"""``halfguard why``: run a training script as it is, and say where its first bad number came from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from halfguard.cli.pages import check_folders, show_page
from halfguard.errors import UsageError

if TYPE_CHECKING:
    from halfguard.cli.bars import Bar
    from halfguard.investigation.passes import PassResult
    from halfguard.records.script_answer import ScriptAnswer

app = typer.Typer(add_completion=False)
_DURATION = (
    "The checks after the script's own run usually take 2 to 10 times as long as it. Press Ctrl-C to "
    "stop them and to see the results so far."
)
_NO_SCRIPT = "Name a Python script, or a module: halfguard why -m package.module."


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def why(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A script, or a module with -m.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Passed to the script.")
    ] = None,
    is_module: Annotated[
        bool, typer.Option("-m", help="SCRIPT is a module, as for python -m.")
    ] = False,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many optimizer steps.")
    ] = None,
    emulate: Annotated[
        bool, typer.Option("--emulate", help="Emulate torch.autocast('cuda') on this CPU.")
    ] = False,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Run in the working folder, not in a copy of it.")
    ] = False,
    markdown: Annotated[Path | None, typer.Option(help="Save the answer as Markdown.")] = None,
    html: Annotated[Path | None, typer.Option(help="Save the answer as HTML.")] = None,
    patch: Annotated[
        Path | None, typer.Option(help="Save the recommended patch, for patch -p1.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a training script until a value is NaN or Inf, and report the line and a tested fix.

    The script runs in a copy of the working folder, several times. Its own output is not shown.

    Exit code 0: nothing is wrong; 1: NaN or Inf, a misuse, or a crash; 2: usage error.
    """
    check_folders(markdown=markdown, html=html, patch=patch)
    if script.startswith("-"):
        raise UsageError(
            f"{script.partition('=')[0]} is not an option.",
            cure="halfguard why --help lists the options. Options of the script come after its name.",
        )
    if not is_module and not Path(script).is_file():  # before torch is imported
        is_folder = f"{script} is a folder, not a script."
        missing = f"The file {script} does not exist."
        raise UsageError(is_folder if Path(script).is_dir() else missing, cure=_NO_SCRIPT)
    from halfguard.cli.bars import progress  # noqa: PLC0415
    from halfguard.cli.torch_extra import torch_needed  # noqa: PLC0415

    with torch_needed("halfguard why"):
        from halfguard.investigation import Target, investigate  # noqa: PLC0415
    target = Target(name=script, is_module=is_module, arguments=tuple(arguments or ()))
    rank, ranks = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE"))
    if not rank:
        typer.echo(_DURATION, err=True)
    with progress("", alive=False) as bar:  # it forks, and reports often
        answer = investigate(
            target,
            steps=steps,
            in_place=in_place,
            emulate=emulate,
            watch=(lambda *_: None) if rank else _Progress(bar).show,
        )
    if rank:
        raise typer.Exit
    from halfguard.report.script_answer import script_answer_page  # noqa: PLC0415

    page = script_answer_page(answer)
    show_page(lambda _: page, answer.to_json(), markdown, html, as_json=as_json)
    if patch is not None:
        _save_patch(answer, patch)
    good = answer.outcome in ("nothing bad", "no training", "interrupted")
    # Under torchrun any other code is the failure of a rank, which it reports at length.
    raise typer.Exit(0 if good or ranks > 1 else 1)


def _save_patch(answer: ScriptAnswer, path: Path) -> None:
    from halfguard.records import write_atomically  # noqa: PLC0415
    from halfguard.records.autopsy import is_source_patch  # noqa: PLC0415

    text = "" if answer.cure is None else answer.cure.patch
    if is_source_patch(text):
        write_atomically(path, text.rstrip("\n") + "\n")
        typer.echo(f"Saved the patch to {path}. Apply it with: patch -p1 < {path}", err=True)
    else:
        typer.echo(f"There is no patch to save in {path}.", err=True)


class _Progress:
    """What is being done, with its steps and steps per second."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._doing = ""

    def show(self, doing: str, seen: PassResult, _seconds: float) -> None:
        """Show the progress of a pass."""
        rate = f", {seen.steps / seen.seconds:.1f} steps/s" if seen.seconds and seen.steps else ""
        text = f"{doing}: step {seen.steps}{rate}" if seen.steps else doing
        is_new, self._doing = doing != self._doing, doing
        (self._bar.begin if is_new else self._bar.describe)(text)
