"""Problems of a machine for 16-bit training, found from its record.

A finding about the requested precision is a warning or an error. Without a request it is a note, and if
another precision was requested, it is left out. This module does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from halfguard.catalogue import Severity
from halfguard.hardware.choice import FORMATS, SLOWER, Speeds
from halfguard.precision_names import MixedPrecisionName
from halfguard.records.finding import Finding
from halfguard.records.machine import Choice, Device, Hardware, Machine, ParityRow, TorchBuild


def check_hardware(
    hardware: Hardware,
    choice: Choice,
    asked: MixedPrecisionName | None = None,
    speeds: Speeds | None = None,
) -> Iterator[Finding]:
    """Find problems of one device, here or elsewhere; ``choice`` is the advice for it."""
    if hardware.fp16 == "faulty" and asked in (None, "fp16-mixed"):
        yield _faulty_fp16(hardware, "error" if asked else "warning")
    if hardware.kind == "gpu" and hardware.bf16 == "emulated" and asked in (None, "bf16-mixed"):
        yield _emulated_bf16(hardware, choice.precision, _severity(asked))
    if hardware.fp16 == "slow" and asked in (None, "fp16-mixed"):
        yield _slow_fp16(hardware, _severity(asked))
    for precision, speed in (speeds or {}).items():
        if speed < SLOWER and asked in (None, precision):
            yield _slower_than_fp32(hardware, precision, speed, choice.precision, _severity(asked))


def check_machine(machine: Machine, asked: MixedPrecisionName | None = None) -> Iterator[Finding]:
    """Find problems of a machine's software: torch, driver, kernels, the default scaler."""
    torch = machine.torch
    if torch is None:
        yield Finding(
            code="HD005",
            message="torch is not installed here.",
            subject="torch",
            why="Without torch, neither speed nor correctness can be measured.",
            cure="Run: pip install 'halfguard[torch]'",
        )
        return
    if machine.driver and not machine.devices:
        yield _unreachable_gpu(machine.driver, torch)
    for device in machine.devices:
        if not has_kernels(device, torch.architectures):
            yield _no_kernels(device, torch.version, torch.architectures)
    if not torch.default_scaler and asked in (None, "fp16-mixed"):
        yield _scaler_off(machine, _severity(asked))


def check_parity(
    rows: Iterable[ParityRow], asked: MixedPrecisionName | None = None
) -> Iterator[Finding]:
    """Find operations with wrong results, in FP32 and in the requested format."""
    formats = set(FORMATS.values()) if asked is None else {"FP32", FORMATS[asked]}
    for row in rows:
        if not row.passed and row.precision in formats:
            yield Finding(
                code="HD008",
                severity="error",
                message=f"{row.operation.capitalize()} in {row.precision} is wrong on this device.",
                subject=f"{row.operation}, {row.precision}",
                why=f"At {row.size}: {row.detail}.",
                cure=f"Do not train in {row.precision} here. Update the driver and torch, then test again.",
            )


def has_kernels(device: Device, architectures: tuple[str, ...]) -> bool:
    """Return whether a build runs on a device: same major and no newer minor version, or older PTX."""
    if not architectures or device.target is None:
        return True
    if device.kind == "rocm":
        return device.target in architectures
    wanted = tuple(int(part) for part in device.target.split("."))
    for name in architectures:
        built = re.fullmatch(r"(sm|compute)_(\d+)(\d)", name)
        if built is None:  # a name such as sm_90a runs on exactly one chip
            if re.fullmatch(f"sm_{wanted[0]}{wanted[1]}[a-z]", name):
                return True
            continue
        version = (int(built[2]), int(built[3]))
        if version <= wanted and (built[1] == "compute" or version[0] == wanted[0]):
            return True
    return False


def _severity(asked: MixedPrecisionName | None) -> Severity:
    return "note" if asked is None else "warning"


def _scaler_off(machine: Machine, severity: Severity) -> Finding:
    kind = machine.devices[0].torch_type if machine.devices else "cpu"
    return Finding(
        code="HD113",
        severity=severity,
        message="torch.amp.GradScaler() disables itself here, because there is no CUDA device.",
        subject="GradScaler",
        why="It only logs a warning, and FP16 training then loses small gradients.",
        cure=f'Pass the device: torch.amp.GradScaler("{kind}") or halfguard.GradScaler("{kind}").',
    )


def _emulated_bf16(hardware: Hardware, better: MixedPrecisionName, severity: Severity) -> Finding:
    why = "BF16 is computed in FP32 and rounded, which is slower than FP16 and FP32."
    cure = f"Use {better}."
    if hardware.vendor == "NVIDIA":
        why += " torch.cuda.is_bf16_supported() returns True because it counts emulation."
        cure += (
            " To check for native BF16: torch.cuda.is_bf16_supported(including_emulation=False)."
        )
    return Finding(
        code="HG406",
        severity=severity,
        message=f"BF16 is only emulated on {hardware.name}.",
        subject="bf16-mixed",
        why=why,
        cure=cure,
    )


def _faulty_fp16(hardware: Hardware, severity: Severity) -> Finding:
    return Finding(
        code="HD003",
        severity=severity,
        message=f"FP16 returns NaN or wrong results on {hardware.name}.",
        subject="fp16-mixed",
        why=(
            "On chips without tensor cores (TU116, TU117), convolutions fail at training sizes but not in "
            "small tests: pytorch/pytorch#58123, ultralytics/ultralytics#17977."
        ),
        cure="Use fp32. After updating the driver or torch, test again: halfguard doctor --batch-size N.",
    )


def _slower_than_fp32(
    hardware: Hardware,
    precision: MixedPrecisionName,
    speed: float,
    better: MixedPrecisionName,
    severity: Severity,
) -> Finding:
    here = "this processor" if hardware.kind == "processor" else hardware.name
    return Finding(
        code="HD004",
        severity=severity,
        message=f"{FORMATS[precision]} is slower than FP32 on {here}.",
        subject=precision,
        why=f"Matrix products ran at {speed:.2f}x the speed of FP32.",
        cure=f"Train in {better} here. Use {FORMATS[precision]} here only to study numerics.",
    )


def _slow_fp16(hardware: Hardware, severity: Severity) -> Finding:
    return Finding(
        code="HD006",
        severity=severity,
        message=f"FP16 is not faster on {hardware.name}.",
        subject="fp16-mixed",
        why=(
            "It has no tensor cores, and FP16 arithmetic is far slower than FP32, so FP32 is used. Weights, "
            "gradients and optimizer state stay in FP32, so only saved activations shrink."
        ),
        cure="Use fp32. Use fp16-mixed only if the activations do not fit in memory.",
    )


def _unreachable_gpu(driver: str, torch: TorchBuild) -> Finding:
    build = torch.cuda or torch.hip
    if build is None:
        why = f"torch {torch.version} was built for the CPU only."
        cure = "Install a build of torch for your GPU: pytorch.org/get-started."
    else:
        why = f"torch {torch.version} was built for {build} but finds no device."
        cure = "Update the driver, or check CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES."
    return Finding(
        code="HD005",
        severity="warning",
        message=f"A GPU driver is loaded ({driver}), but torch finds no GPU.",
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
        cure=(
            "Install a build that supports this card. Older builds are listed at "
            "pytorch.org/get-started."
        ),
    )
