"""Choose a precision for a device, with reasons: a pure function of its abilities and of measurements.

The rules are ordered by harm: wrong results first, then 16 bits that are slower than FP32, then the two good
cases. BF16 is preferred where it is native, since it has the range of FP32 and needs no loss scaling. FP16
has 11 significant bits where BF16 has 8, and is named as the alternative.

Measurements override the table: a format that failed the self-test or ran slower than FP32 is not chosen.
This module does not import torch.

Two measurements rule a format out: a wrong result in the self-test, and a low speed. A format that the table
recommends may be only as fast as FP32, since it still saves memory; one without a recommendation must be
faster by enough to be worth the change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from halfguard.hardware.lookup import look_up_device, look_up_processor
from halfguard.hardware.reading import read_devices, read_processor
from halfguard.precision_names import MixedPrecisionName, PrecisionName
from halfguard.records.machine import Choice, Hardware, ParityRow, Support

MIN_SPEEDUP = 1.1  # a smaller speedup is not worth a change of precision
SLOWER = 0.8  # of FP32's speed; below it a format is called slower, above it may be noise
MIN_SPEEDUP_OF_FP16 = 2.0  # speed of FP16 over BF16; less is not worth loss scaling
FORMATS: dict[MixedPrecisionName, str] = {
    "fp32": "FP32",
    "fp16-mixed": "FP16",
    "bf16-mixed": "BF16",
}
HALF: tuple[MixedPrecisionName, ...] = ("bf16-mixed", "fp16-mixed")
Speeds = Mapping[MixedPrecisionName, float]  # of matrix products, over FP32


@dataclass(frozen=True)
class Measurements:
    """Measured speeds, if any, and the precisions that failed the self-test."""

    speeds: Speeds
    failed: frozenset[MixedPrecisionName]

    @staticmethod
    def from_records(speeds: Speeds | None, parity: Iterable[ParityRow]) -> Measurements:
        formats = {row.precision for row in parity if not row.passed}
        return Measurements(speeds or {}, frozenset(p for p in FORMATS if FORMATS[p] in formats))

    def allows(self, precision: MixedPrecisionName) -> bool:
        """Return whether no measurement rules the precision out."""
        return precision not in self.failed and self.speeds.get(precision, 1.0) >= SLOWER

    def recommends(self, precision: MixedPrecisionName, hardware: Hardware) -> bool:
        """Return whether it passed, and is faster than FP32: by measurement, else by the table."""
        if precision in self.failed or _is_emulated(precision, hardware):
            return False
        if precision in self.speeds:
            return self.speeds[precision] >= MIN_SPEEDUP
        return hardware.kind == "gpu" and _support(precision, hardware) == "native"


def choose_by_measurement(hardware: Hardware, measurements: Measurements) -> Choice:
    """Choose the best recommended precision; FP32 if there is none."""
    chosen = _best(hardware, measurements)
    against = tuple(_reasons_against(hardware, measurements, [p for p in HALF if p != chosen]))
    if chosen is None:
        where = "processor" if hardware.kind == "processor" else "device"
        unknown = f"No 16-bit format is known to be faster than FP32 on this {where}."
        return _choice("fp32", *(against or (unknown,)))
    speed = measurements.speeds.get(chosen)
    measured = () if speed is None else (f"Matrix products ran {speed:.2g}x as fast as in FP32.",)
    if chosen == "bf16-mixed":
        native = ("BF16 is native.",) if hardware.bf16 == "native" else ()
        range_of_fp32 = "BF16 has the range of FP32, so no loss scaling is needed."
        return _choice(chosen, *native, *measured, range_of_fp32, *against)
    scaler = "FP16 overflows above 65504. Pass the device to its GradScaler."
    return _choice(chosen, *((*measured, *against) or ("FP16 is native.",)), warnings=(scaler,))


def _support(precision: MixedPrecisionName, hardware: Hardware) -> Support:
    return hardware.bf16 if precision == "bf16-mixed" else hardware.fp16


def _is_emulated(precision: MixedPrecisionName, hardware: Hardware) -> bool:
    """Return whether a GPU computes it in FP32. For a processor, trust the speed and not its flags."""
    return hardware.kind == "gpu" and _support(precision, hardware) == "emulated"


def _best(hardware: Hardware, measurements: Measurements) -> MixedPrecisionName | None:
    candidates = [precision for precision in HALF if measurements.recommends(precision, hardware)]
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    bf16, fp16 = (measurements.speeds.get(precision, 1.0) for precision in HALF)
    return "fp16-mixed" if fp16 > MIN_SPEEDUP_OF_FP16 * bf16 else "bf16-mixed"


def _reasons_against(
    hardware: Hardware, measurements: Measurements, precisions: Iterable[MixedPrecisionName]
) -> Iterator[str]:
    for precision in precisions:
        format_name, speed = FORMATS[precision], measurements.speeds.get(precision)
        if precision in measurements.failed:
            yield f"{format_name} returns wrong results on this machine: it failed the self-test."
        elif speed is not None and speed >= MIN_SPEEDUP and _is_emulated(precision, hardware):
            yield (
                f"{format_name} ran at {speed:.2g}x the speed of FP32, which is unexpected because "
                "it is emulated in FP32 here. It is therefore not chosen."
            )
        elif speed is not None:
            yield f"{format_name} ran at {speed:.2g}x the speed of FP32."


logger = logging.getLogger("halfguard")


def choose_precision(torch: Any) -> PrecisionName:
    """Choose by the table for the first accelerator of torch, or else for the processor; log why.

    ``precision: auto`` asks for it once, when a configuration is read, so that the journal and every rank
    see a definite name.
    """
    devices = read_devices(torch)
    hardware = look_up_device(devices[0]) if devices else look_up_processor(read_processor())
    choice = choose(hardware)
    logger.info(
        "precision: auto is %s on %s. %s", choice.precision, hardware.name, choice.reasons[0]
    )
    return choice.precision


def choose(
    hardware: Hardware, speeds: Speeds | None = None, parity: Iterable[ParityRow] = ()
) -> Choice:
    """Choose the precision for a device; ``speeds`` and ``parity`` are measured, if the device is here."""
    measurements = Measurements.from_records(speeds, parity)
    if "fp32" in measurements.failed:
        return _FP32_WRONG
    if hardware.kind == "processor":
        return _on_processor(hardware, measurements)
    if hardware.fp16 == "unknown":
        return _not_listed(hardware, measurements)
    listed = _choose_by_table(hardware, measurements)
    if measurements.allows(listed.precision):
        return listed
    return choose_by_measurement(hardware, measurements)


def _choose_by_table(hardware: Hardware, measurements: Measurements) -> Choice:
    if hardware.fp16 == "faulty":
        return _FAULTY
    if hardware.vendor == "Apple":
        return _on_apple(hardware)
    if not hardware.matrix:
        return _without_matrix_units(hardware, measurements)
    units = matrix_units(hardware)
    if hardware.bf16 != "native":
        return _choice(
            "fp16-mixed",
            f"FP16 runs on {units}, which makes it fast.",
            "BF16 is only emulated in FP32 here, which is slower than both FP16 and FP32.",
            warnings=(f"{_NEEDS_SCALER} `halfguard probe` shows layers close to that limit.",),
        )
    fp16 = (
        "fp16-mixed runs on these units as well. It has 11 significant bits instead of 8, but needs a "
        "GradScaler."
    )
    tf32 = "If FP32 already runs in TF32, 16-bit training is at most about 2x as fast."
    warnings = ((fp16,) if measurements.allows("fp16-mixed") else ()) + ((tf32,) * hardware.tf32)
    return _choice("bf16-mixed", f"BF16 is native, on {units}.", _RANGE_OF_FP32, warnings=warnings)


def _choice(precision: MixedPrecisionName, *reasons: str, warnings: tuple[str, ...] = ()) -> Choice:
    return Choice(precision=precision, reasons=reasons, warnings=warnings)


_RANGE_OF_FP32 = "It has the range of FP32, so no loss scaling is needed."
_NEEDS_SCALER = "FP16 overflows above 65504 and needs a GradScaler."
_FP32_WRONG = _choice(
    "fp32",
    "FP32 itself fails the self-test here, and every precision needs FP32.",
    warnings=("Do not train on this device until the self-test passes. HD008 lists what failed.",),
)
_FAULTY = _choice(
    "fp32",
    (
        "FP16 convolutions return NaN or wrong results on this chip at training sizes, although small tests "
        "pass."
    ),
    "It has neither native BF16 nor tensor cores, so 16-bit training would not be faster.",
    warnings=(
        "To save memory, use smaller batches, gradient accumulation or activation checkpointing.",
    ),
)
_CPU_AUTOCAST = (
    "CPU autocast runs softmax and norms in 16-bit precision, CUDA autocast in FP32.",
    'To apply the GPU rules on this CPU, use halfguard.emulate_autocast("cuda").',
)


def matrix_units(hardware: Hardware) -> str:
    """Return the vendor's name for matrix units."""
    return "tensor cores" if hardware.vendor == "NVIDIA" else "matrix units"


def _not_listed(hardware: Hardware, measurements: Measurements) -> Choice:
    if not measurements.speeds:
        return _choice(
            "fp32",
            "This device is not in the table and was not measured.",
            warnings=("Run `halfguard doctor` on it, with a torch build that has kernels for it.",),
        )
    choice = choose_by_measurement(hardware, measurements)
    why = "This device is not in the table, so the choice is based on measurements."
    return choice.model_copy(update={"reasons": (why, *choice.reasons)})


def _without_matrix_units(hardware: Hardware, measurements: Measurements) -> Choice:
    if hardware.fp16 == "slow":
        memory = (
            "fp16-mixed saves activation memory but no time, so use it only if activations do "
            "not fit in memory."
        )
        return _choice(
            "fp32",
            "FP16 arithmetic is slower than FP32 here, and there are no matrix units.",
            "BF16 is only emulated.",
            warnings=() if "fp16-mixed" in measurements.failed else (memory,),
        )
    rate = (
        "Without matrix units, accumulation runs at FP32 speed, so expect a speedup far below 2x."
    )
    return _choice(
        "fp16-mixed",
        "FP16 arithmetic runs at up to 2x FP32, with half the memory traffic.",
        "BF16 is only emulated.",
        warnings=(rate, _NEEDS_SCALER),
    )


def _on_apple(hardware: Hardware) -> Choice:
    saved = (
        "16-bit training saves memory and memory traffic here, but the arithmetic is not faster."
    )
    if hardware.bf16 == "native":
        native = "BF16 is native on M3 and later (macOS 14 or later)."
        return _choice("bf16-mixed", native, _RANGE_OF_FP32, warnings=(saved,))
    return _choice(
        "fp16-mixed",
        "FP16 is native.",
        "MPS accepts BF16 on macOS 14 and later, but M1 and M2 emulate it in FP32.",
        warnings=(saved, 'Pass the device to the scaler: torch.amp.GradScaler("mps").'),
    )


def _on_processor(hardware: Hardware, measurements: Measurements) -> Choice:
    if measurements.speeds:
        choice = choose_by_measurement(hardware, measurements)
    elif hardware.bf16 == "native" and "bf16-mixed" not in measurements.failed:
        choice = _choice("bf16-mixed", "BF16 is native.", _RANGE_OF_FP32)
    else:
        choice = _choice(
            "fp32", "No 16-bit format is known to be faster than FP32 on this processor."
        )
    return choice.model_copy(update={"warnings": (*choice.warnings, *_CPU_AUTOCAST)})
