"""``halfguard doctor``: what this machine, or a card named by hand, will really do in 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from halfguard.records.cost import Cost
    from halfguard.records.diagnosis import Diagnosis
    from halfguard.records.machine import MachineReport
    from halfguard.workload import Workload

app = typer.Typer(add_completion=False)
PRECISIONS = ("fp32", "fp16-mixed", "bf16-mixed", "fp16-weights")


@app.command()
def doctor(
    entry: Annotated[
        str | None,
        typer.Argument(metavar="ENTRY", help="file.py:function or module:function."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help='A card that is not here: "TITAN RTX".')
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help=f"What you want to train in: {', '.join(PRECISIONS)}.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Of the self-test; take your own.")
    ] = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Measure time and memory of ENTRY's steps.")
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory that a step may take, such as 2GB; with --cost."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Passed to ENTRY.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell what each precision really does here, which to choose, and what will go wrong.

    With ENTRY, the model and its training setup are examined as well. A finding about a precision
    counts only if that precision is asked for. Exit code 0: nothing found; 1: findings; 2: a mistake
    in the call.
    """
    limit = _check(entry, gpu, precision, batch_size, cost, budget)
    workload = None if entry is None else _load(entry, seed)
    report = _report(gpu, precision, batch_size)
    diagnosis = costs = None
    if workload is not None:
        report = _without_scaler(report)
        diagnosis = _examine(workload, precision or report.choice.precision)
        costs = _measure(workload, precision, limit) if cost else None
    if as_json:
        typer.echo(_as_json(report, diagnosis, costs))
    else:
        from halfguard.cli.doctor_page import show  # noqa: PLC0415

        show(report, diagnosis, costs)
    answers = (report, diagnosis, costs)
    if any(answer is not None and answer.problems for answer in answers):
        raise typer.Exit(1)


def _check(
    entry: str | None,
    gpu: str | None,
    precision: str | None,
    batch_size: int | None,
    cost: bool,
    budget: str | None,
) -> int | None:
    """Refuse what makes no sense before anything is measured; return the budget in bytes."""
    from halfguard.errors import UsageError  # noqa: PLC0415
    from halfguard.records.sizes import bytes_of  # noqa: PLC0415

    if precision is not None and precision not in PRECISIONS:
        allowed = ", ".join(PRECISIONS)
        raise UsageError(f"There is no precision {precision!r}.", cure=f"Allowed: {allowed}.")
    if gpu is not None and (entry is not None or batch_size is not None):
        raise UsageError(
            "--gpu is about a card that is not here, so nothing can be run on it.",
            cure="Leave out ENTRY and --batch-size, or leave out --gpu.",
        )
    if cost and entry is None:
        raise UsageError(
            "--cost measures steps of a job, and none was named.",
            cure="Write: halfguard doctor job.py:build --cost, where build(seed) returns a Workload.",
        )
    if budget is not None and not cost:
        raise UsageError("--budget is compared with a measured step.", cure="Add ENTRY and --cost.")
    return None if budget is None else bytes_of(budget)


def _report(gpu: str | None, precision: str | None, batch_size: int | None) -> MachineReport:
    from halfguard.cli.bars import progress  # noqa: PLC0415
    from halfguard.diagnosis.machine.report import STEPS, report_on_card, report_on_machine  # noqa: PLC0415

    asked: Any = "fp16-mixed" if precision == "fp16-weights" else precision
    if gpu is not None:
        return report_on_card(gpu, asked)
    try:
        import torch  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return report_on_machine(None, asked)
    with progress("Measuring", total=STEPS) as bar:
        return report_on_machine(torch, asked, batch_size, bar.advance)


def _without_scaler(report: MachineReport) -> MachineReport:
    """What GradScaler() would do is beside the point where the job's own scaler is examined."""
    kept = tuple(found for found in report.findings if found.code != "HD001")
    return report.model_copy(update={"findings": kept})


def _load(entry: str, seed: int) -> Workload:
    from halfguard.cli.torch_extra import torch_needed  # noqa: PLC0415

    with torch_needed("halfguard doctor ENTRY"):
        from halfguard.workload import load  # noqa: PLC0415
    return load(entry, seed)


def _examine(workload: Workload, precision: str) -> Diagnosis:
    from halfguard.diagnosis.doctor import doctor_workload  # noqa: PLC0415

    return doctor_workload(workload, precision=precision)


def _measure(workload: Workload, precision: str | None, budget: int | None) -> Cost:
    """In the precision that was asked for beside FP32; in all of them if none was."""
    from halfguard.cli.bars import progress  # noqa: PLC0415
    from halfguard.diagnosis.cost import measure_cost  # noqa: PLC0415

    precisions = None if precision is None else ("fp32", precision)
    with progress("Timing steps") as bar:
        return measure_cost(workload, precisions, budget=budget, advance=bar.advance)


def _as_json(report: MachineReport, diagnosis: Diagnosis | None, cost: Cost | None) -> str:
    import json  # noqa: PLC0415

    parts = {"machine": report, "diagnosis": diagnosis, "cost": cost}
    body = {name: part and json.loads(part.to_json()) for name, part in parts.items()}
    return json.dumps({"kind": "doctor", "schema_version": 1, **body})
