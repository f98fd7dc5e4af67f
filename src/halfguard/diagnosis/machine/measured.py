"""What a machine showed about each format, and the choice that follows where no table can make it.

Two things rule a format out: the self-test, if one of its operations is wrong, and the clock. A format that a
table recommends may be as fast as FP32, since it still saves memory; one that nothing but the clock speaks
for must be worth the change. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from halfguard.records.machine import Choice, Hardware, ParityRow, Precision, Support

GAIN = 1.1  # less is not worth a change of precision
SLOWER = 0.8  # of FP32's speed: below it a format is called slower; nearer to 1 it may be noise
WORTH_A_SCALER = 2.0  # FP16 over BF16: less does not pay for loss scaling
FORMAT: dict[Precision, str] = {"fp32": "FP32", "fp16-mixed": "FP16", "bf16-mixed": "BF16"}
HALF: tuple[Precision, ...] = ("bf16-mixed", "fp16-mixed")
Speeds = Mapping[Precision, float]  # of matrix products, over FP32


@dataclass(frozen=True)
class Measured:
    """Speeds, if any were measured, and the precisions that failed the self-test."""

    speeds: Speeds
    wrong: frozenset[Precision]

    @staticmethod
    def of(speeds: Speeds | None, parity: Iterable[ParityRow]) -> Measured:
        """What was measured, from its two records."""
        failed = {row.precision for row in parity if not row.passed}
        wrong = frozenset(name for name, spoken in FORMAT.items() if spoken in failed)
        return Measured(speeds or {}, wrong)

    def allows(self, precision: Precision) -> bool:
        """Whether nothing that was measured speaks against it."""
        return precision not in self.wrong and self.speeds.get(precision, 1.0) >= SLOWER

    def recommends(self, precision: Precision, hardware: Hardware) -> bool:
        """Whether it is right, and faster than FP32: by the clock, else by what is known of the device."""
        if precision in self.wrong or _is_emulated(precision, hardware):
            return False
        if precision in self.speeds:
            return self.speeds[precision] >= GAIN
        return hardware.kind == "gpu" and _support(precision, hardware) == "native"


def from_measurements(hardware: Hardware, found: Measured) -> Choice:
    """The best of what is right and pays; FP32 if nothing does."""
    chosen = _best(hardware, found)
    against = tuple(_against(hardware, found, [p for p in HALF if p != chosen]))
    if chosen is None:
        here = "processor" if hardware.kind == "processor" else "device"
        return Choice(
            precision="fp32",
            reasons=against
            or (f"No 16-bit format is known to be faster than FP32 on this {here}.",),
        )
    speed = found.speeds.get(chosen)
    clock = () if speed is None else (f"Matrix products ran {speed:.2g}x as fast as in FP32.",)
    if chosen == "bf16-mixed":
        native = ("BF16 is native.",) if hardware.bf16 == "native" else ()
        range_of_fp32 = "BF16 has the range of FP32: no loss scaling is needed."
        return Choice(precision=chosen, reasons=(*native, *clock, range_of_fp32, *against))
    return Choice(
        precision=chosen,
        reasons=(*clock, *against) or ("FP16 is native.",),
        warnings=("FP16 overflows at 65504 and needs a GradScaler that is given the device.",),
    )


def _support(precision: Precision, hardware: Hardware) -> Support:
    return hardware.bf16 if precision == "bf16-mixed" else hardware.fp16


def _is_emulated(precision: Precision, hardware: Hardware) -> bool:
    """Whether a GPU computes it in FP32; of a processor the clock knows more than its flags."""
    return hardware.kind == "gpu" and _support(precision, hardware) == "emulated"


def _best(hardware: Hardware, found: Measured) -> Precision | None:
    left = [precision for precision in HALF if found.recommends(precision, hardware)]
    if len(left) < 2:
        return left[0] if left else None
    bf16, fp16 = (found.speeds.get(precision, 1.0) for precision in ("bf16-mixed", "fp16-mixed"))
    return "fp16-mixed" if fp16 > WORTH_A_SCALER * bf16 else "bf16-mixed"


def _against(hardware: Hardware, found: Measured, precisions: Iterable[Precision]) -> Iterator[str]:
    for precision in precisions:
        spoken, speed = FORMAT[precision], found.speeds.get(precision)
        if precision in found.wrong:
            yield f"{spoken} computes wrongly here: the self-test failed."
        elif speed is not None and speed >= GAIN and _is_emulated(precision, hardware):
            yield (
                f"{spoken} ran at {speed:.2g}x the speed of FP32, which is odd: it is emulated here, that is "
                "computed in FP32. It is not chosen on such a measurement."
            )
        elif speed is not None:
            yield f"{spoken} ran at {speed:.2g}x the speed of FP32."
