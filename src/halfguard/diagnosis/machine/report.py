"""The machine's half of doctor: read it, measure it, judge it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from halfguard.diagnosis.machine.abilities import abilities
from halfguard.diagnosis.machine.choice import choose
from halfguard.diagnosis.machine.findings import judge_hardware, judge_machine, judge_parity
from halfguard.diagnosis.machine.hardware import find, of_device, of_processor
from halfguard.diagnosis.machine.measured import Speeds
from halfguard.diagnosis.machine.reading import read_machine
from halfguard.records.machine import Hardware, Machine, MachineReport, ParityRow, Precision

STEPS = 19  # one for speeds, one for each operation in each format


def report_on_card(name: str, asked: Precision | None = None) -> MachineReport:
    """A card that need not be here, found by name; needs no torch."""
    hardware = find(name)
    choice = choose(hardware)
    return MachineReport(
        hardware=hardware,
        abilities=abilities(hardware),
        choice=choice,
        findings=tuple(judge_hardware(hardware, choice, asked)),
    )


def report_on_machine(
    torch: Any | None,
    asked: Precision | None = None,
    batch_size: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> MachineReport:
    """This machine and its first device, measured where torch is installed."""
    machine = read_machine(torch)
    if torch is None:
        return report_on_record(machine, asked)
    from halfguard.diagnosis.machine.speed import measure_speeds  # noqa: PLC0415
    from halfguard.diagnosis.parity.selftest import parity  # noqa: PLC0415

    device = torch.device(machine.devices[0].torch_type if machine.devices else "cpu")
    speeds = measure_speeds(device)
    advance()
    rows = []
    for row in parity(device, batch_size):
        rows.append(row)
        advance()
    return report_on_record(machine, asked, speeds, rows)


def report_on_record(
    machine: Machine,
    asked: Precision | None = None,
    speeds: Speeds | None = None,
    parity: Iterable[ParityRow] = (),
) -> MachineReport:
    """The judgement of a machine that was read, perhaps elsewhere."""
    hardware = hardware_of(machine)
    rows = tuple(parity)
    choice = choose(hardware, speeds, rows)
    return MachineReport(
        machine=machine,
        hardware=hardware,
        abilities=abilities(hardware, speeds),
        choice=choice,
        parity=rows,
        findings=(
            *judge_parity(rows, asked),
            *judge_hardware(hardware, choice, asked, speeds),
            *(
                found
                for other in _others(machine)
                for found in judge_hardware(other, choose(other), asked)
            ),
            *judge_machine(machine, asked),
        ),
    )


def hardware_of(machine: Machine) -> Hardware:
    """The first accelerator, or the processor."""
    if machine.devices:
        return of_device(machine.devices[0])
    return of_processor(machine.processor)


def _others(machine: Machine) -> list[Hardware]:
    """The devices of other names than the first."""
    names = {device.name: device for device in reversed(machine.devices)}
    return [of_device(device) for name, device in names.items() if name != machine.devices[0].name]
