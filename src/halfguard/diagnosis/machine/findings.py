"""What is wrong with a machine for 16-bit training, or will surprise: judged from its record.

A finding about a precision that was asked for is a warning or an error; if nothing was asked for, a note;
if another precision was asked for, it is nobody's business. This module imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from halfguard.diagnosis.machine.measured import FORMAT, SLOWER, Speeds
from halfguard.records.finding import Finding, Severity
from halfguard.records.machine import (
    Choice,
    Device,
    Hardware,
    Machine,
    ParityRow,
    Precision,
    TorchBuild,
)


def judge_hardware(
    hardware: Hardware,
    choice: Choice,
    asked: Precision | None = None,
    speeds: Speeds | None = None,
) -> Iterator[Finding]:
    """What one device will do, here or elsewhere; ``choice`` is what is advised for it."""
    if hardware.fp16 == "faulty" and asked in (None, "fp16-mixed"):
        yield _faulty(hardware, "error" if asked else "warning")
    if hardware.kind == "gpu" and hardware.bf16 == "emulated" and asked in (None, "bf16-mixed"):
        yield _emulated(hardware, choice.precision, _severity(asked))
    if hardware.fp16 == "slow" and asked in (None, "fp16-mixed"):
        yield _no_gain(hardware, _severity(asked))
    for precision, speed in (speeds or {}).items():
        if speed < SLOWER and asked in (None, precision):
            yield _slower(hardware, precision, speed, choice.precision, _severity(asked))


def judge_machine(machine: Machine, asked: Precision | None = None) -> Iterator[Finding]:
    """What the software of a machine will do with its devices."""
    torch = machine.torch
    if torch is None:
        yield Finding(
            code="HD005",
            message="torch is not installed here.",
            subject="torch",
            why="Without it neither speed nor correctness can be measured.",
            cure="Run: pip install 'halfguard[torch]'",
        )
        return
    if machine.driver and not machine.devices:
        yield _out_of_reach(machine.driver, torch)
    for device in machine.devices:
        if not has_kernels(device, torch.architectures):
            yield _no_kernels(device, torch.version, torch.architectures)
    if not torch.default_scaler and asked in (None, "fp16-mixed"):
        yield _scaler_off(machine, _severity(asked))


def judge_parity(rows: Iterable[ParityRow], asked: Precision | None = None) -> Iterator[Finding]:
    """Operations that compute wrongly: in FP32, and in the format that was asked for."""
    formats = set(FORMAT.values()) if asked is None else {"FP32", FORMAT[asked]}
    for row in rows:
        if not row.passed and row.precision in formats:
            yield Finding(
                code="HD008",
                severity="error",
                message=f"{row.operation.capitalize()} in {row.precision} is wrong on this device.",
                subject=f"{row.operation}, {row.precision}",
                why=f"At {row.size}: {row.detail}.",
                cure=f"Do not train in {row.precision} here; update the driver and torch, and test again.",
            )


def has_kernels(device: Device, architectures: tuple[str, ...]) -> bool:
    """Whether a build runs on a device: the same major version and no newer minor, or PTX to compile."""
    if not architectures or device.target is None:
        return True
    if device.kind == "rocm":
        return device.target in architectures
    wanted = tuple(int(part) for part in device.target.split("."))
    for name in architectures:
        built = re.fullmatch(r"(sm|compute)_(\d+)(\d)", name)
        if built is None:  # sm_90a and its like run on exactly one chip
            if re.fullmatch(f"sm_{wanted[0]}{wanted[1]}[a-z]", name):
                return True
            continue
        version = (int(built[2]), int(built[3]))
        if version <= wanted and (built[1] == "compute" or version[0] == wanted[0]):
            return True
    return False


def _severity(asked: Precision | None) -> Severity:
    return "note" if asked is None else "warning"


def _scaler_off(machine: Machine, severity: Severity) -> Finding:
    kind = machine.devices[0].torch_type if machine.devices else "cpu"
    return Finding(
        code="HD001",
        severity=severity,
        message="torch.amp.GradScaler() turns itself off here: there is no CUDA device.",
        subject="GradScaler",
        why="It only warns; an FP16 loop then runs without loss scaling, and small gradients vanish.",
        cure=f'Pass the device: torch.amp.GradScaler("{kind}") or halfguard.GradScaler("{kind}").',
    )


def _emulated(hardware: Hardware, better: Precision, severity: Severity) -> Finding:
    why = "It is computed in FP32 and rounded: slower than FP16 and FP32."
    cure = f"Use {better}."
    if hardware.vendor == "NVIDIA":
        why += " torch.cuda.is_bf16_supported() says True all the same: it counts emulation."
        cure += " To ask for native BF16: torch.cuda.is_bf16_supported(including_emulation=False)."
    return Finding(
        code="HD002",
        severity=severity,
        message=f"BF16 is only emulated on {hardware.name}.",
        subject="bf16-mixed",
        why=why,
        cure=cure,
    )


def _faulty(hardware: Hardware, severity: Severity) -> Finding:
    return Finding(
        code="HD003",
        severity=severity,
        message=f"FP16 gives NaN or wrong results on {hardware.name}.",
        subject="fp16-mixed",
        why="Convolutions fail on chips without tensor cores (TU116, TU117), at sizes of training and not in "
        "small probes: pytorch/pytorch#58123, ultralytics/ultralytics#17977.",
        cure="Use fp32. After an update of driver or torch, test again: halfguard doctor --batch-size N.",
    )


def _slower(
    hardware: Hardware, precision: Precision, speed: float, better: Precision, severity: Severity
) -> Finding:
    here = "this processor" if hardware.kind == "processor" else hardware.name
    return Finding(
        code="HD004",
        severity=severity,
        message=f"{FORMAT[precision]} is slower than FP32 on {here}.",
        subject=precision,
        why=f"Matrix products ran at {speed:.2f}x the speed of FP32.",
        cure=f"Train in {better} here; {FORMAT[precision]} is for studying numerics, or for another device.",
    )


def _no_gain(hardware: Hardware, severity: Severity) -> Finding:
    rate = f"1/{round(1 / hardware.fp16_rate)} of" if hardware.fp16_rate else "slower than"
    return Finding(
        code="HD006",
        severity=severity,
        message=f"FP16 brings no speed on {hardware.name}.",
        subject="fp16-mixed",
        why=f"It has no tensor cores, and FP16 arithmetic runs at {rate} FP32's rate, so FP32 is used; "
        "weights, gradients and optimizer stay FP32: only saved activations shrink.",
        cure="Use fp32; take fp16-mixed only if the activations do not fit.",
    )


def _out_of_reach(driver: str, torch: TorchBuild) -> Finding:
    build = torch.cuda or torch.hip
    if build is None:
        why = f"torch {torch.version} was built for the CPU only."
        cure = "Install a build of torch for your GPU: pytorch.org/get-started."
    else:
        why = f"torch {torch.version} was built for {build} and finds no device."
        cure = "Update the driver, or look at CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES."
    return Finding(
        code="HD005",
        severity="warning",
        message=f"A GPU driver is loaded ({driver}), but torch cannot reach a GPU.",
        subject="torch",
        why=why,
        cure=cure,
    )


def _no_kernels(device: Device, version: str, architectures: tuple[str, ...]) -> Finding:
    return Finding(
        code="HD007",
        severity="error",
        message=f"torch {version} has no kernels for {device.name} ({device.target}).",
        subject=f"{device.torch_type}:{device.index}",
        why=f"It was built for {', '.join(architectures)}.",
        cure="Install a build that still supports this card; older ones are at pytorch.org/get-started.",
    )
