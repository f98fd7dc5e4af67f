"""Report on a machine or a card: read it, measure it, describe and choose a precision, find problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from halfguard.diagnosis.machine.findings import check_hardware, check_machine, check_parity
from halfguard.hardware.choice import Speeds, choose, matrix_units
from halfguard.hardware.lookup import find_card, look_up_device, look_up_processor
from halfguard.hardware.reading import read_machine
from halfguard.precision_names import MixedPrecisionName
from halfguard.records.machine import Ability, Hardware, Machine, MachineReport, ParityRow

STEPS = 19  # of progress: one for the speeds, one per operation and format


def report_on_card(name: str, asked: MixedPrecisionName | None = None) -> MachineReport:
    """Report on a card by its name. The card need not be here, and torch is not needed."""
    hardware = find_card(name)
    choice = choose(hardware)
    return MachineReport(
        hardware=hardware,
        abilities=list_abilities(hardware),
        choice=choice,
        findings=tuple(check_hardware(hardware, choice, asked)),
    )


def report_on_machine(
    torch: Any | None,
    asked: MixedPrecisionName | None = None,
    batch_size: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> MachineReport:
    """Report on this machine and its first device; measure it if torch is installed."""
    machine = read_machine(torch)
    if torch is None:
        return report_on_record(machine, asked)
    from halfguard.diagnosis.machine.speed import measure_speeds  # noqa: PLC0415
    from halfguard.diagnosis.parity.selftest import run_selftest  # noqa: PLC0415

    device = torch.device(machine.devices[0].torch_type if machine.devices else "cpu")
    speeds = measure_speeds(device)
    advance()
    rows = []
    for row in run_selftest(device, batch_size):
        rows.append(row)
        advance()
    return report_on_record(machine, asked, speeds, rows)


def report_on_record(
    machine: Machine,
    asked: MixedPrecisionName | None = None,
    speeds: Speeds | None = None,
    parity: Iterable[ParityRow] = (),
) -> MachineReport:
    """Report on a machine that was read here or elsewhere: on its first accelerator or its processor."""
    first = machine.devices[:1]
    hardware = look_up_device(first[0]) if first else look_up_processor(machine.processor)
    rows = tuple(parity)
    choice = choose(hardware, speeds, rows)
    return MachineReport(
        machine=machine,
        hardware=hardware,
        abilities=list_abilities(hardware, speeds),
        choice=choice,
        parity=rows,
        findings=(
            *check_parity(rows, asked),
            *check_hardware(hardware, choice, asked, speeds),
            *(
                found
                for other in _other_hardware(machine)
                for found in check_hardware(other, choose(other), asked)
            ),
            *check_machine(machine, asked),
        ),
    )


def _other_hardware(machine: Machine) -> list[Hardware]:
    """Return the devices whose name differs from the first."""
    by_name = {device.name: device for device in reversed(machine.devices)}
    return [look_up_device(d) for name, d in by_name.items() if name != machine.devices[0].name]


def list_abilities(hardware: Hardware, speeds: Speeds | None = None) -> tuple[Ability, ...]:
    """Return what each precision does on a device, and how fast it is if that was measured."""
    fp32 = "native; matrix products use TF32 if it is enabled" if hardware.tf32 else "native"
    how: dict[MixedPrecisionName, str] = {
        "fp32": fp32,
        "fp16-mixed": _describe_fp16(hardware),
        "bf16-mixed": _describe_bf16(hardware),
    }
    return tuple(
        Ability(precision=precision, how=text, speed=(speeds or {}).get(precision))
        for precision, text in how.items()
    )


def _describe_fp16(hardware: Hardware) -> str:
    if hardware.kind == "processor":
        return _on_processor(hardware, "FP16")
    return {
        "faulty": "wrong: convolutions are known to return NaN",
        "slow": "storage only: FP16 arithmetic is far slower than FP32, so FP32 is used",
        "unknown": "unknown",
    }.get(hardware.fp16, f"native, {_units(hardware)}")


def _describe_bf16(hardware: Hardware) -> str:
    if hardware.kind == "processor":
        return _on_processor(hardware, "BF16")
    return {
        "emulated": "emulated: computed in FP32 and rounded",
        "unknown": "unknown",
    }.get(hardware.bf16, f"native, {_units(hardware)}")


def _units(hardware: Hardware) -> str:
    return f"{'on' if hardware.matrix else 'without'} {matrix_units(hardware)}"


def _on_processor(hardware: Hardware, name: str) -> str:
    units = [unit for unit in hardware.generation.split(", ") if unit.endswith(name)]
    return f"native ({', '.join(units)})" if units else "converted to FP32 and back"
