"""The terminal output of ``halfguard doctor``: one screen for a machine, more for a job."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from halfguard.hardware.measured import FORMATS
from halfguard.precision_names import MixedPrecisionName
from halfguard.records.cost import Cost
from halfguard.records.diagnosis import Diagnosis
from halfguard.records.finding import Finding
from halfguard.records.machine import Machine, MachineReport
from halfguard.records.sizes import format_bytes


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
    memory = f"needs the least memory, {format_bytes(smallest.memory.peak)}"
    if smallest is not fastest:
        memory = f"{smallest.precision} {memory}"
    console.print(f"For this job {fastest.precision} is fastest here, and {memory}.", style="bold")


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
            grid.add_row("", f"Cure:{chr(10) if chr(10) in found.cure else ' '}{found.cure}")
    console.print()
    console.print(grid)
