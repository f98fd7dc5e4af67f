"""``halfguard doctor``: show what this machine, a named card or a job does in 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from halfguard.errors import UsageError
from halfguard.hardware.choice import FORMATS
from halfguard.precision_names import MixedPrecisionName
from halfguard.records.cost import Cost
from halfguard.records.diagnosis import Diagnosis
from halfguard.records.finding import Finding
from halfguard.records.machine import Machine, MachineReport
from halfguard.records.sizes import format_bytes, parse_bytes

if TYPE_CHECKING:
    from halfguard.workload import Workload

PRECISIONS = ("fp32", "fp16-mixed", "bf16-mixed", "fp16-weights")


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
    """Show how each precision runs on this machine, which one to choose, and what can go wrong.

    With ENTRY, the model and its training setup are examined as well. A finding about a precision
    counts only if you request that precision. Exit code 0: no findings; 1: findings; 2: a usage
    error.
    """
    budget_bytes = _validate_options(entry, gpu, precision, batch_size, cost, budget)
    workload = None if entry is None else _load(entry)
    report = _report(gpu, precision, batch_size)
    diagnosis = costs = None
    if workload is not None:
        from halfguard.diagnosis.doctor import doctor_workload  # noqa: PLC0415

        report = _drop_scaler_finding(report)
        asked = precision or _stored_precision(workload) or report.choice.precision
        diagnosis = doctor_workload(workload, precision=asked)
        costs = _measure(workload, precision, budget_bytes) if cost else None
    if as_json:
        typer.echo(_as_json(report, diagnosis, costs))
    else:
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
    if precision is not None and precision not in PRECISIONS:
        allowed = ", ".join(PRECISIONS)
        raise UsageError(f"{precision!r} is not a precision.", cure=f"Allowed: {allowed}.")
    if gpu is not None and (entry is not None or batch_size is not None):
        raise UsageError(
            "--gpu only describes a card and cannot be combined with ENTRY or --batch-size.",
            cure="Omit ENTRY and --batch-size, or omit --gpu.",
        )
    if cost and entry is None:
        raise UsageError(
            "--cost measures steps of a job, but ENTRY is missing.",
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
    kept = tuple(found for found in report.findings if found.code != "HD113")
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


def show(report: MachineReport, diagnosis: Diagnosis | None, cost: Cost | None) -> None:
    """Print the machine, the choice, the job if there is one, and all findings with their cures."""
    console = Console(highlight=False, markup=False)
    _print_head(report, console)
    console.print(_ability_table(report))
    console.print(f"Choose {report.choice.precision}.", style="bold")
    _print_list([*report.choice.reasons, *report.choice.warnings], console)
    findings = list(report.findings)
    if diagnosis is not None:
        if diagnosis.effective is not None:
            console.print(f"\nThe forward pass: {diagnosis.effective}")
        findings += diagnosis.findings
    if cost is not None:
        _print_cost(cost, console)
        findings += cost.findings
    _print_findings(findings, console)


def _print_head(report: MachineReport, console: Console) -> None:
    hardware, machine = report.hardware, report.machine
    if hardware.kind == "gpu":
        # The names of Apple's generations contain the vendor.
        facts = [f"{hardware.vendor} {hardware.generation.removeprefix(f'{hardware.vendor} ')}"]
    else:
        facts = [f"{machine.processor.cores} cores"] if machine else []
    if hardware.memory is not None:
        facts.append(f"{hardware.memory:.3g} GB")
    console.print(f"{hardware.name}: {', '.join(facts)}", style="bold")
    console.print(f"source: {hardware.source}" if machine is None else _software_text(machine))


def _software_text(machine: Machine) -> str:
    torch = "no torch" if machine.torch is None else f"torch {machine.torch.version}"
    count = len(machine.devices)
    devices = "no accelerator" if count == 0 else f"{count} device{'s' * (count > 1)}"
    return f"{machine.system}, {torch}, {machine.driver or 'no GPU driver'}, {devices}"


def _ability_table(report: MachineReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("precision")
    table.add_column("what happens")
    measured = any(ability.speed is not None for ability in report.abilities)
    if measured:
        table.add_column("matmul speed", justify="right")
    if report.parity:
        table.add_column("against float64")
    for ability in report.abilities:
        cells = [ability.precision, ability.how]
        if measured:
            cells.append("" if ability.speed is None else f"{ability.speed:.2g}x")
        if report.parity:
            cells.append(_parity_text(report, ability.precision))
        chosen = ability.precision == report.choice.precision
        table.add_row(*cells, style="green" if chosen else "")
    return table


def _parity_text(report: MachineReport, precision: MixedPrecisionName) -> str:
    rows = [row for row in report.parity if row.precision == FORMATS[precision]]
    wrong = [row.operation for row in rows if not row.passed]
    return f"wrong: {', '.join(wrong)}" if wrong else f"{len(rows)} operations correct"


def _print_cost(cost: Cost, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("precision")
    against = "" if cost.baseline is None else f"over {cost.baseline.precision}"
    for head in ("time", against, "peak memory", "activations at peak"):
        table.add_column(head, justify="right")
    for row in cost.costs:
        if row.failure:
            table.add_row(
                row.precision, "no memory" if row.out_of_memory else "failed", style="red"
            )
            continue
        ratio = "" if row.ratio is None else f"{row.ratio.median:.2f}x"
        time = "" if row.seconds is None else f"{1000 * row.seconds:.3g} ms"
        peak, activations = row.memory.peak, row.memory.at_peak.activations
        table.add_row(row.precision, time, ratio, format_bytes(peak), format_bytes(activations))
    console.print(table)
    _print_best(cost, console)


def _print_best(cost: Cost, console: Console) -> None:
    """Print the best precision for the job: the machine's choice is for large products only."""
    passed = [row for row in cost.costs if row.ratio is not None]
    if len(passed) < 2:
        return
    fastest = min(passed, key=lambda row: row.ratio.median if row.ratio else 1.0)
    smallest = min(passed, key=lambda row: (row.memory.peak, row is not fastest))
    subject = "it" if smallest is fastest else smallest.precision
    memory = f"{subject} needs the least memory, {format_bytes(smallest.memory.peak)}"
    console.print(
        f"For this job, {fastest.precision} is the fastest precision on this machine, and "
        f"{memory}.",
        style="bold",
    )


def _print_list(sentences: list[str], console: Console) -> None:
    grid = Table.grid(padding=(0, 1))  # a grid indents long sentences after their dash
    for sentence in sentences:
        grid.add_row("-", sentence)
    console.print(grid)


def _print_findings(findings: list[Finding], console: Console) -> None:
    if not findings:
        console.print("\nNo findings.")
        return
    grid = Table.grid(padding=(0, 1))
    styles = {"error": "red", "warning": "yellow", "note": ""}
    for found in findings:
        text = f"{found.severity}: {found.message} {found.why}"
        grid.add_row(found.code, text, style=styles[found.severity])
        if found.cure:  # several lines are code
            grid.add_row("", f"Fix:{chr(10) if chr(10) in found.cure else ' '}{found.cure}")
    console.print()
    console.print(grid)
