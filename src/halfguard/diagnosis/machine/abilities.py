"""The behaviour of each precision on a device, and its speed: text and numbers for a table."""

from __future__ import annotations

from halfguard.hardware.choice import matrix_units
from halfguard.hardware.measured import Speeds
from halfguard.precision_names import MixedPrecisionName
from halfguard.records.machine import Ability, Hardware


def list_abilities(hardware: Hardware, speeds: Speeds | None = None) -> tuple[Ability, ...]:
    """Return one row per precision; measured speeds replace published ones."""
    fp32 = "native; matrix products in TF32 if that is allowed" if hardware.tf32 else "native"
    return (
        _make_ability("fp32", fp32, hardware, speeds),
        _make_ability("fp16-mixed", _fp16(hardware), hardware, speeds),
        _make_ability("bf16-mixed", _bf16(hardware), hardware, speeds),
    )


def _make_ability(
    precision: MixedPrecisionName, how: str, hardware: Hardware, speeds: Speeds | None
) -> Ability:
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


def _fp16(hardware: Hardware) -> str:
    if hardware.kind == "processor":
        return _on_processor(hardware, "FP16")
    if hardware.fp16 == "faulty":
        return "wrong: convolutions are known to give NaN"
    if hardware.fp16 == "unknown":
        return "unknown"
    rate = hardware.fp16_rate
    if hardware.matrix:
        return f"native, on {matrix_units(hardware)}"
    if hardware.fp16 == "slow" and rate:
        return f"storage only: arithmetic at 1/{round(1 / rate)} of FP32's rate, so FP32 is used"
    if not rate:
        return "native, without matrix units; the table's sources do not give its rate"
    speed = f"{rate:g}x FP32" if rate > 1 else "the rate of FP32"
    return f"native, at {speed}, without matrix units"


def _on_processor(hardware: Hardware, name: str) -> str:
    units = [unit for unit in hardware.generation.split(", ") if unit.endswith(name)]
    return f"native ({', '.join(units)})" if units else "converted to FP32 and back"


def _bf16(hardware: Hardware) -> str:
    if hardware.kind == "processor":
        return _on_processor(hardware, "BF16")
    if hardware.bf16 == "native":
        return f"native, on {matrix_units(hardware)}" if hardware.matrix else "native"
    if hardware.bf16 == "unknown":
        return "unknown"
    return "emulated: computed in FP32 and rounded"
