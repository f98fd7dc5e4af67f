"""What each precision really does on a device, and how fast: words and numbers for a table."""

from __future__ import annotations

from halfguard.diagnosis.machine.choice import matrix_units
from halfguard.diagnosis.machine.measured import Speeds
from halfguard.records.machine import Ability, Hardware, Precision


def abilities(hardware: Hardware, speeds: Speeds | None = None) -> tuple[Ability, ...]:
    """What each precision really does on a device."""
    return (
        _ability("fp32", _fp32(hardware), hardware, speeds),
        _ability("fp16-mixed", _fp16(hardware), hardware, speeds),
        _ability("bf16-mixed", _bf16(hardware), hardware, speeds),
    )


def _ability(precision: Precision, how: str, hardware: Hardware, speeds: Speeds | None) -> Ability:
    if speeds:
        return Ability(precision=precision, how=how, speed=speeds.get(precision), basis="measured")
    peak = hardware.matrix_tflops if hardware.matrix else hardware.fp16_tflops
    if precision == "fp32":
        peak = hardware.fp32_tflops
    if precision == "bf16-mixed" and hardware.bf16 != "native":
        peak = None
    if peak is None or hardware.fp32_tflops is None:
        return Ability(precision=precision, how=how)
    speed = peak / hardware.fp32_tflops
    if precision == "bf16-mixed":
        speed *= hardware.bf16_rate
    return Ability(precision=precision, how=how, speed=speed, basis="published")


def _fp32(hardware: Hardware) -> str:
    return "native; matrix products in TF32 if that is allowed" if hardware.tf32 else "native"


def _fp16(hardware: Hardware) -> str:
    if hardware.kind == "processor":
        return _in_processor(hardware, "FP16")
    if hardware.fp16 == "faulty":
        return "wrong: convolutions are known to give NaN"
    if hardware.fp16 == "unknown":
        return "unknown"
    rate = hardware.fp16_rate
    if hardware.matrix:
        return f"native, on {matrix_units(hardware)}"
    if hardware.fp16 == "slow" and rate:
        return f"storage only: arithmetic at 1/{round(1 / rate)} of FP32, so FP32 is used"
    if not rate:
        return "native, without matrix units, at a rate that no document read for this table states"
    speed = f"{rate:g}x FP32" if rate > 1 else "the rate of FP32"
    return f"native, at {speed}, without matrix units"


def _in_processor(hardware: Hardware, name: str) -> str:
    units = [unit for unit in hardware.generation.split(", ") if unit.endswith(name)]
    return f"native ({', '.join(units)})" if units else "converted to FP32 and back"


def _bf16(hardware: Hardware) -> str:
    if hardware.kind == "processor":
        return _in_processor(hardware, "BF16")
    if hardware.bf16 == "native":
        return f"native, on {matrix_units(hardware)}" if hardware.matrix else "native"
    if hardware.bf16 == "unknown":
        return "unknown"
    return "emulated: computed in FP32 and rounded"
