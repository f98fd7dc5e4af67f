"""``halfguard plan``: find the modules that must stay in FP32, by training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from halfguard.cli.pages import check_folders

if TYPE_CHECKING:
    from halfguard.probing.island_trials import IslandTrial
    from halfguard.records.plan import Island, LineIsland, PrecisionPlan


def plan(
    entry: Annotated[
        str, typer.Argument(metavar="ENTRY", help="file.py:function or module:function.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File for the plan.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of each trial.", min=1)] = 20,
    precision: Annotated[str, typer.Option(help="fp16-mixed or bf16-mixed.")] = "fp16-mixed",
    framework: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="FRAMEWORK",
            help=("Also print the lines for a framework: transformers."),
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find the smallest set of modules that must stay in FP32 so that the loss follows FP32.

    On a CPU the trials use CUDA's autocast rules. Exit code 0: a plan was found, possibly empty; 1: no plan
    was found, or its only island is the whole model; 2: usage error; 130: ended by Ctrl-C.
    """
    check_folders(output=output)
    if framework not in ("", "transformers"):
        raise typer.BadParameter("known: transformers", param_hint="--for")
    from halfguard.cli.bars import progress  # noqa: PLC0415
    from halfguard.cli.torch_extra import torch_needed  # noqa: PLC0415
    from halfguard.errors import NoPlanError  # noqa: PLC0415

    with torch_needed("halfguard plan"):
        from halfguard.probing.plan_search import plan as search  # noqa: PLC0415
        from halfguard.workload import load  # noqa: PLC0415
    done: list[IslandTrial] = []
    with progress("FP32 run, steps") as bar:

        def watch(trial: IslandTrial) -> None:
            done.append(trial)
            bar.describe(f"trial {len(done) + 1}, steps of all trials")

        try:
            found = search(
                load(entry),
                steps=steps,
                precision=precision,
                advance=bar.advance,
                watch=watch,
            )
        except NoPlanError as error:
            typer.secho(f"halfguard: {error.message}", fg="red", err=True)
            typer.echo(error.cure, err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            count = _trials(len(done))
            typer.echo(f"Interrupted after {count}. No plan has been found yet.", err=True)
            raise typer.Exit(130) from None
    if output is not None:
        found.save(output)
    if as_json:
        typer.echo(found.to_json())
    else:
        _print(found, output)
        if framework:
            typer.echo(_for_transformers(found, output))
    raise typer.Exit(1 if found.modules == ("",) else 0)


def _for_transformers(found: PrecisionPlan, output: Path | None) -> str:
    """Return the lines that apply a plan to a model of transformers."""
    file = output or "plan.yaml"
    missing = "" if output else "; write the file with -o"
    parts = sorted({island.module.rpartition(".")[2] for island in found.islands})
    lines = [
        "",
        f"# Under autocast (fp16=True), once the model is created{missing}:",
        "import halfguard",
        f"halfguard.apply_plan(model, '{file}')",
    ]
    if parts and not found.lines and all(island.kind == "fp32" for island in found.islands):
        lines += [
            "# For weights loaded in float16, in the model class:",
            f"_keep_in_fp32_modules = {parts}",
        ]
    return "\n".join(lines)


def _trials(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'}"


def _short(island: Island | LineIsland) -> Island | LineIsland:
    """Return a line with the name of its file instead of the path."""
    file = getattr(island, "file", "")
    return island.model_copy(update={"file": Path(file).name}) if file else island


def _print(found: PrecisionPlan, output: Path | None) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from halfguard.trials.producer import name_of  # noqa: PLC0415

    console = Console(highlight=False, markup=False)
    evidence = found.evidence
    assert evidence is not None  # noqa: S101 - a search always gives it
    count = len(found.islands) + len(found.lines)
    title = "No island is needed" if not count else f"{count} island{'s' * (count > 1)}"
    if found.modules == ("",):
        title = "Training works only with the whole model in FP32, which is not a plan"
    console.print(
        f"{title}; {_trials(evidence.trials)} over {evidence.modules} modules, {evidence.steps} steps each."
    )
    grid = Table.grid(padding=(0, 2))
    islands: list[Island | LineIsland] = [*found.islands, *found.lines]
    for island in islands:
        grid.add_row(name_of(_short(island)), island.reason)
    if count:
        console.print(grid)
    console.print(
        f"Loss {evidence.loss:.4g}, in FP32 {evidence.loss_fp32:.4g}: {evidence.deviation:.2%} apart. "
        f"{evidence.flops:.1%} of the matrix-product FLOPs move to FP32."
    )
    if found.loss_scale is not None:
        scale = found.loss_scale
        console.print(f"Loss scale: {scale.low:g} to {scale.high:g}, best {scale.best:g}.")
    if found.modules == ("",):
        console.print("Fix the line above instead: call .float() on its inputs.")
    if output is not None:
        console.print(
            f"Written to {output}. To use it, call halfguard.apply_plan(model, '{output}')"
        )
