"""Measurements of each format on a machine, and the choice based on them where the table has no answer.

Two measurements rule a format out: a wrong result in the self-test, and a low speed. A format that the table
recommends may be only as fast as FP32, since it still saves memory. A format without a recommendation must be
faster by enough to be worth the change. This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from halfguard.precision_names import MixedPrecisionName
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
        return Choice(
            precision="fp32",
            reasons=against
            or (f"No 16-bit format is known to be faster than FP32 on this {where}.",),
        )
    speed = measurements.speeds.get(chosen)
    measured = () if speed is None else (f"Matrix products ran {speed:.2g}x as fast as in FP32.",)
    if chosen == "bf16-mixed":
        native = ("BF16 is native.",) if hardware.bf16 == "native" else ()
        range_of_fp32 = "BF16 has the range of FP32: no loss scaling is needed."
        return Choice(precision=chosen, reasons=(*native, *measured, range_of_fp32, *against))
    return Choice(
        precision=chosen,
        reasons=(*measured, *against) or ("FP16 is native.",),
        warnings=("FP16 overflows above 65504. Pass the device to its GradScaler.",),
    )


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
            yield f"{format_name} gives wrong results here: it failed the self-test."
        elif speed is not None and speed >= MIN_SPEEDUP and _is_emulated(precision, hardware):
            yield (
                f"{format_name} ran at {speed:.2g}x the speed of FP32, which is odd: it is emulated here, so "
                "it is computed in FP32. It is not chosen."
            )
        elif speed is not None:
            yield f"{format_name} ran at {speed:.2g}x the speed of FP32."
