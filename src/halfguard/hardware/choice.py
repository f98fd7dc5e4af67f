"""Choose a precision for a device, with reasons: a pure function of its abilities and of measurements.

The rules are ordered by harm: wrong results first, then 16 bits that are slower than FP32, then the two good
cases. BF16 is preferred where it is native, since it has the range of FP32 and needs no loss scaling. FP16
has 11 significant bits where BF16 has 8, and is named as the alternative.

Measurements override the table: a format that failed the self-test or ran slower than FP32 is not chosen
(``measured``). This module does not import torch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from halfguard.hardware.lookup import look_up_device, look_up_processor
from halfguard.hardware.measured import Measurements, Speeds, choose_by_measurement
from halfguard.hardware.reading import read_devices, read_processor
from halfguard.precision_names import PrecisionName
from halfguard.records.machine import Choice, Hardware, ParityRow

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
    if hardware.bf16 == "native":
        return _native_bf16(hardware, measurements)
    return _fp16_only(hardware)


_FP32_WRONG = Choice(
    precision="fp32",
    reasons=("FP32 itself fails the self-test here, and every precision needs FP32.",),
    warnings=("Do not train on this device until the self-test passes. HD008 lists what failed.",),
)

_FAULTY = Choice(
    precision="fp32",
    reasons=(
        "FP16 convolutions give NaN or wrong results on this chip at training sizes; small tests pass.",
        "It has no native BF16 and no tensor cores, so 16 bits would not be faster.",
    ),
    warnings=("To save memory: smaller batches, gradient accumulation, activation checkpointing.",),
)

_CPU_AUTOCAST = (
    "Autocast has other rules on a CPU: softmax and norms stay in 16 bits. On a GPU they run in FP32.",
    'To use the GPU rules here: halfguard.emulate_autocast("cuda").',
)


def matrix_units(hardware: Hardware) -> str:
    """Return the vendor's name for matrix units."""
    return "tensor cores" if hardware.vendor == "NVIDIA" else "matrix units"


def _not_listed(hardware: Hardware, measurements: Measurements) -> Choice:
    if not measurements.speeds:
        return Choice(
            precision="fp32",
            reasons=("This device is not in the table, and nothing was measured on it.",),
            warnings=("Run `halfguard doctor` on it, with a torch build that has kernels for it.",),
        )
    choice = choose_by_measurement(hardware, measurements)
    why = "This device is not in the table, so the choice is based on measurements."
    return choice.model_copy(update={"reasons": (why, *choice.reasons)})


def _native_bf16(hardware: Hardware, measurements: Measurements) -> Choice:
    fp16 = "fp16-mixed runs there as well: 11 significant bits, not 8, but it needs a GradScaler."
    tf32 = "If FP32 already runs in TF32, 16 bits are at most about 2x as fast."
    return Choice(
        precision="bf16-mixed",
        reasons=(
            f"BF16 is native, on {matrix_units(hardware)}.",
            "It has the range of FP32: no loss scaling is needed.",
        ),
        warnings=(
            *((fp16,) if measurements.allows("fp16-mixed") else ()),
            *((tf32,) if hardware.tf32 else ()),
        ),
    )


def _fp16_only(hardware: Hardware) -> Choice:
    return Choice(
        precision="fp16-mixed",
        reasons=(
            f"FP16 runs on {matrix_units(hardware)}, which makes it fast.",
            "BF16 is only emulated here: it is computed in FP32 and slower than both.",
        ),
        warnings=(
            "FP16 overflows above 65504 and needs a GradScaler. `halfguard probe` shows layers close to it.",
        ),
    )


def _without_matrix_units(hardware: Hardware, measurements: Measurements) -> Choice:
    if hardware.fp16 == "slow":
        memory = (
            "fp16-mixed saves activation memory but no time: use it only if activations do not fit."
        )
        return Choice(
            precision="fp32",
            reasons=(
                "FP16 arithmetic is slower than FP32 here, and there are no matrix units.",
                "BF16 is only emulated.",
            ),
            warnings=() if "fp16-mixed" in measurements.failed else (memory,),
        )
    return Choice(
        precision="fp16-mixed",
        reasons=(
            "FP16 arithmetic runs at up to 2x FP32, with half the memory traffic.",
            "BF16 is only emulated.",
        ),
        warnings=(
            "Without matrix units, FP32 accumulation runs at FP32's rate: expect far less than 2x.",
            "FP16 overflows above 65504 and needs a GradScaler.",
        ),
    )


def _on_apple(hardware: Hardware) -> Choice:
    warnings = ("16 bits save memory and memory traffic here; do not expect faster arithmetic.",)
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
            "MPS accepts BF16 on macOS 14 and later, but M1 and M2 emulate it in FP32.",
        ),
        warnings=(*warnings, 'Pass the device to the scaler: torch.amp.GradScaler("mps").'),
    )


def _on_processor(hardware: Hardware, measurements: Measurements) -> Choice:
    if measurements.speeds:
        choice = choose_by_measurement(hardware, measurements)
    elif hardware.bf16 == "native" and "bf16-mixed" not in measurements.failed:
        reasons = ("BF16 is native.", "It has the range of FP32: no loss scaling is needed.")
        choice = Choice(precision="bf16-mixed", reasons=reasons)
    else:
        reason = "No 16-bit format is known to be faster than FP32 on this processor."
        choice = Choice(precision="fp32", reasons=(reason,))
    return choice.model_copy(update={"warnings": (*choice.warnings, *_CPU_AUTOCAST)})
