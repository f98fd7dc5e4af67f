"""``halfguard doctor``: show what this machine, a named card or a job does in 16 bits."""

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
        str | None,
        typer.Option(
            metavar="NAME", help='Describe this card instead of this machine: "TITAN RTX".'
        ),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help=f"Precision to train in: {', '.join(PRECISIONS)}.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, help="Batch size for the self-test; use your training batch size."
        ),
    ] = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Measure time and memory of ENTRY's steps.")
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory limit for a step, such as 2GB; needs --cost."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what each precision does here, which to choose, and what can go wrong.

    With ENTRY, the model and its training setup are examined as well. A finding about a precision
    counts only if you request that precision. Exit code 0: no findings; 1: findings; 2: a usage
    error.
    """
    budget_bytes = _validate_options(entry, gpu, precision, batch_size, cost, budget)
    workload = None if entry is None else _load(entry)
    report = _report(gpu, precision, batch_size)
    diagnosis = costs = None
    if workload is not None:
        report = _drop_scaler_finding(report)
        asked = precision or _stored_precision(workload) or report.choice.precision
        diagnosis = _examine(workload, asked)
        costs = _measure(workload, precision, budget_bytes) if cost else None
    if as_json:
        typer.echo(_as_json(report, diagnosis, costs))
    else:
        from halfguard.cli.doctor_page import show  # noqa: PLC0415

        show(report, diagnosis, costs)
    records = (report, diagnosis, costs)
    if any(record is not None and record.problems for record in records):
        raise typer.Exit(1)


def _validate_options(
    entry: str | None,
    gpu: str | None,
    precision: str | None,
    batch_size: int | None,
    cost: bool,
    budget: str | None,
) -> int | None:
    """Check the options before anything is measured; return the budget in bytes."""
    from halfguard.errors import UsageError  # noqa: PLC0415
    from halfguard.records.sizes import parse_bytes  # noqa: PLC0415

    if precision is not None and precision not in PRECISIONS:
        allowed = ", ".join(PRECISIONS)
        raise UsageError(f"There is no precision {precision!r}.", cure=f"Allowed: {allowed}.")
    if gpu is not None and (entry is not None or batch_size is not None):
        raise UsageError(
            "--gpu only describes a card, so nothing can run on it.",
            cure="Leave out ENTRY and --batch-size, or leave out --gpu.",
        )
    if cost and entry is None:
        raise UsageError(
            "--cost measures steps of a job, but no ENTRY was given.",
            cure="Run: halfguard doctor job.py:build --cost, where build(seed) returns a Workload.",
        )
    if budget is not None and not cost:
        raise UsageError("--budget needs a measured step.", cure="Add ENTRY and --cost.")
    return None if budget is None else parse_bytes(budget)


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


def _drop_scaler_finding(report: MachineReport) -> MachineReport:
    """Drop the finding on ``GradScaler()``: the job's own scaler is examined instead."""
    kept = tuple(found for found in report.findings if found.code != "HD001")
    return report.model_copy(update={"findings": kept})


def _load(entry: str) -> Workload:
    from halfguard.cli.torch_extra import torch_needed  # noqa: PLC0415

    with torch_needed("halfguard doctor ENTRY"):
        from halfguard.workload import load  # noqa: PLC0415
    return load(entry)


def _stored_precision(workload: Workload) -> str | None:
    """Return the precision of the 16 bits that the model's weights have; None for FP32 weights."""
    names = {str(p.dtype) for p in workload.model.parameters() if p.requires_grad}
    stored = {"torch.float16": "fp16-mixed", "torch.bfloat16": "bf16-mixed"}
    return next((precision for name, precision in stored.items() if name in names), None)


def _examine(workload: Workload, precision: str) -> Diagnosis:
    from halfguard.diagnosis.doctor import doctor_workload  # noqa: PLC0415

    return doctor_workload(workload, precision=precision)


def _measure(workload: Workload, precision: str | None, budget: int | None) -> Cost:
    """Measure FP32 and the requested precision; without a request, all default precisions."""
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
