"""Which precision to take on a device, and why: a pure function of what the device can do.

The order of the rules is the order of what hurts most: wrong numbers first, then FP16 that is slower than
FP32, then the two good cases. BF16 is preferred where it is native, since it has the range of FP32 and needs
no loss scaling; FP16 carries three more bits and is named as the other way. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from halfguard.records.machine import Choice, Hardware, Precision

GAIN = 1.1  # less is not worth a change of precision
Speeds = Mapping[Precision, float]  # of matrix products, over FP32


def choose(hardware: Hardware, speeds: Speeds | None = None) -> Choice:
    """The precision for a device; ``speeds`` are measured, where the device is here."""
    if hardware.kind == "processor":
        return _on_processor(hardware, speeds or {})
    if hardware.fp16 == "faulty":
        return _FAULTY
    if hardware.fp16 == "unknown":
        return _UNKNOWN
    if hardware.vendor == "Apple":
        return _on_apple(hardware)
    if not hardware.matrix:
        return _without_matrix_units(hardware)
    if hardware.bf16 == "native":
        return _native_bf16(hardware)
    return _fp16_only(hardware)


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

_UNKNOWN = Choice(
    precision="fp32",
    reasons=("This device is not in the table, so nothing is promised about 16 bits.",),
    warnings=("Run `halfguard doctor` on the machine itself: it measures speed and correctness.",),
)


_CPU_AUTOCAST = (
    "Autocast has other rules on a CPU: softmax and norms stay in 16 bits. On a GPU they run in FP32.",
    'To follow the rules of the GPU here: halfguard.emulate_autocast("cuda").',
)


def matrix_units(hardware: Hardware) -> str:
    """What its vendor calls them."""
    return "tensor cores" if hardware.vendor == "NVIDIA" else "matrix units"


def _native_bf16(hardware: Hardware) -> Choice:
    tf32 = "Where FP32 already runs in TF32, the gain over it is at most about 2x."
    return Choice(
        precision="bf16-mixed",
        reasons=(
            f"BF16 is native, on {matrix_units(hardware)}.",
            "It has the range of FP32: no loss scaling is needed.",
        ),
        warnings=(
            "fp16-mixed runs there as well: three more bits, but it needs a GradScaler.",
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


def _without_matrix_units(hardware: Hardware) -> Choice:
    if hardware.fp16 == "slow":
        return Choice(
            precision="fp32",
            reasons=(
                "FP16 arithmetic is slower than FP32 here, and there are no matrix units.",
                "BF16 is only emulated.",
            ),
            warnings=(
                "fp16-mixed saves memory for activations but no time: take it only if they do not fit.",
            ),
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


def _on_processor(hardware: Hardware, speeds: Speeds) -> Choice:
    bf16 = speeds.get("bf16-mixed")
    worth = bf16 >= GAIN if bf16 is not None else hardware.bf16 == "native"
    if not worth:
        reason = "No 16-bit format is faster than FP32 on this processor."
        return Choice(precision="fp32", reasons=(reason,), warnings=_CPU_AUTOCAST)
    measured = f" Matrix products ran {bf16:.2g}x as fast as in FP32." if bf16 is not None else ""
    native = "BF16 is native." if hardware.bf16 == "native" else "BF16 pays."
    return Choice(
        precision="bf16-mixed",
        reasons=(native + measured, "It has the range of FP32: no loss scaling is needed."),
        warnings=_CPU_AUTOCAST,
    )
