"""Which precision to take on a device, and why: a pure function of what it can do and of what was measured.

The order of the rules is the order of what hurts most: wrong numbers first, then 16 bits that are slower than
FP32, then the two good cases. BF16 is preferred where it is native, since it has the range of FP32 and needs
no loss scaling; FP16 carries three more bits and is named as the other way.

What was measured on the machine goes before what a table says: a format that failed the self-test or ran
slower than FP32 is not chosen (``measured``). This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable

from halfguard.diagnosis.machine.measured import Measured, Speeds, from_measurements
from halfguard.records.machine import Choice, Hardware, ParityRow


def choose(
    hardware: Hardware, speeds: Speeds | None = None, parity: Iterable[ParityRow] = ()
) -> Choice:
    """The precision for a device; ``speeds`` and ``parity`` are measured, where the device is here."""
    found = Measured.of(speeds, parity)
    if "fp32" in found.wrong:
        return _NOTHING_RIGHT
    if hardware.kind == "processor":
        return _on_processor(hardware, found)
    if hardware.fp16 == "unknown":
        return _not_listed(hardware, found)
    listed = _by_table(hardware, found)
    return listed if found.allows(listed.precision) else from_measurements(hardware, found)


def _by_table(hardware: Hardware, found: Measured) -> Choice:
    if hardware.fp16 == "faulty":
        return _FAULTY
    if hardware.vendor == "Apple":
        return _on_apple(hardware)
    if not hardware.matrix:
        return _without_matrix_units(hardware, found)
    if hardware.bf16 == "native":
        return _native_bf16(hardware, found)
    return _fp16_only(hardware)


_NOTHING_RIGHT = Choice(
    precision="fp32",
    reasons=("FP32 itself fails here, and every precision needs it.",),
    warnings=("Do not train on this device before the self-test passes: HD008 says what failed.",),
)

_FAULTY = Choice(
    precision="fp32",
    reasons=(
        "FP16 convolutions give NaN or wrong results on this chip; small probes pass, training does not.",
        "There is no native BF16 either, and there are no tensor cores to win with.",
    ),
    warnings=(
        "If memory is short: smaller batches, gradient accumulation, activation checkpointing.",
    ),
)

_CPU_AUTOCAST = (
    "Autocast has other rules on a CPU: softmax and norms stay in 16 bits. On a GPU they run in FP32.",
    'To follow the rules of the GPU here: halfguard.emulate_autocast("cuda").',
)


def matrix_units(hardware: Hardware) -> str:
    """What its vendor calls them."""
    return "tensor cores" if hardware.vendor == "NVIDIA" else "matrix units"


def _not_listed(hardware: Hardware, found: Measured) -> Choice:
    if not found.speeds:
        return Choice(
            precision="fp32",
            reasons=("This device is not in the table, and nothing was measured on it.",),
            warnings=("Run `halfguard doctor` there, with a torch that has kernels for it.",),
        )
    choice = from_measurements(hardware, found)
    why = "This device is not in the table: what was measured decides."
    return choice.model_copy(update={"reasons": (why, *choice.reasons)})


def _native_bf16(hardware: Hardware, found: Measured) -> Choice:
    fp16 = "fp16-mixed runs there as well: three more bits, but it needs a GradScaler."
    tf32 = "Where FP32 already runs in TF32, the gain over it is at most about 2x."
    return Choice(
        precision="bf16-mixed",
        reasons=(
            f"BF16 is native, on {matrix_units(hardware)}.",
            "It has the range of FP32: no loss scaling is needed.",
        ),
        warnings=(
            *((fp16,) if found.allows("fp16-mixed") else ()),
            *((tf32,) if hardware.tf32 else ()),
        ),
    )


def _fp16_only(hardware: Hardware) -> Choice:
    return Choice(
        precision="fp16-mixed",
        reasons=(
            f"FP16 runs on {matrix_units(hardware)}; that is where the speed is.",
            "BF16 is only emulated here: computed in FP32, slower than both.",
        ),
        warnings=(
            "FP16 overflows at 65504 and needs a GradScaler; `halfguard probe` shows who comes close.",
        ),
    )


def _without_matrix_units(hardware: Hardware, found: Measured) -> Choice:
    if hardware.fp16 == "slow":
        memory = (
            "fp16-mixed saves memory for activations but no time: take it only if they do not fit."
        )
        return Choice(
            precision="fp32",
            reasons=(
                "FP16 arithmetic is slower than FP32 here, and there are no matrix units.",
                "BF16 is only emulated.",
            ),
            warnings=() if "fp16-mixed" in found.wrong else (memory,),
        )
    return Choice(
        precision="fp16-mixed",
        reasons=(
            f"FP16 arithmetic runs at {hardware.fp16_rate or 1:g}x FP32, with half its memory traffic.",
            "BF16 is only emulated.",
        ),
        warnings=(
            "Without matrix units, sums kept in FP32 run at the rate of FP32: expect far less than 2x.",
            "FP16 overflows at 65504 and needs a GradScaler.",
        ),
    )


def _on_apple(hardware: Hardware) -> Choice:
    warnings = ("16 bits save memory and its traffic here; do not count on faster arithmetic.",)
    if hardware.bf16 == "native":
        return Choice(
            precision="bf16-mixed",
            reasons=(
                "BF16 is native on M3 and later (macOS 14 or later).",
                "It has the range of FP32: no loss scaling is needed.",
            ),
            warnings=warnings,
        )
    return Choice(
        precision="fp16-mixed",
        reasons=(
            "FP16 is native.",
            "MPS accepts BF16 from macOS 14 on, but M1 and M2 emulate it in FP32.",
        ),
        warnings=(*warnings, 'Pass the device to the scaler: torch.amp.GradScaler("mps").'),
    )


def _on_processor(hardware: Hardware, found: Measured) -> Choice:
    if found.speeds:
        choice = from_measurements(hardware, found)
    elif hardware.bf16 == "native" and "bf16-mixed" not in found.wrong:
        reasons = ("BF16 is native.", "It has the range of FP32: no loss scaling is needed.")
        choice = Choice(precision="bf16-mixed", reasons=reasons)
    else:
        reason = "No 16-bit format is known to be faster than FP32 on this processor."
        choice = Choice(precision="fp32", reasons=(reason,))
    return choice.model_copy(update={"warnings": (*choice.warnings, *_CPU_AUTOCAST)})
