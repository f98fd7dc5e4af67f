"""Reasons why a step in half is not faster, each with a cure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from halfguard.records.cost import Cost, PrecisionCost

SMALL_SHARE = 0.3  # of a step; if matrix products take less, making them faster changes little
SHORT_OPERATION = (
    30e-6  # seconds per operation; below it a step is mostly Python and kernel launches
)
FAST_RATIO = 0.8  # time of a half matrix product over FP32's; below it half counts as fast
CAST_SHARE = 0.2  # of all operations; more casts are a reason


class Reason(NamedTuple):
    """A cause and its cure, as text."""

    why: str
    cure: str


def find_slow_reasons(cost: Cost, base: PrecisionCost, other: PrecisionCost) -> Iterator[Reason]:
    """Yield the reasons that the measurements show, the most important first."""
    if other.matmul_ratio is not None and other.matmul_ratio > FAST_RATIO:
        yield Reason(
            why="Matrix products are not faster in it on this machine: a large one takes "
            f"{other.matmul_ratio:.2f} of the time of FP32.",
            cure="Train in FP32 on this machine, or in another 16-bit precision if that is fast here. "
            'halfguard doctor --gpu "NAME" shows what a card can do.',
        )
    if base.seconds and cost.product_flops:
        share = base.flops / cost.product_flops / base.seconds
        if share < SMALL_SHARE:
            yield _little_to_gain(base, share)
    if cost.fp32_products != "highest":
        yield Reason(
            why="FP32 is already fast here: its matrix products run in TF32 or less (float32 matmul "
            f"precision {cost.fp32_products!r}), on the same units as half.",
            cure="Nothing is wrong: TF32 already gives most of the gain. For a true FP32 baseline call "
            'torch.set_float32_matmul_precision("highest").',
        )
    if other.operations and other.casts / other.operations > CAST_SHARE:
        extra = other.operations - base.operations
        yield Reason(
            why=f"{other.casts} of its {other.operations} operations are casts ({extra:+d} operations "
            f"compared with {base.precision}).",
            cure="Casts pay off if the layer after them is large. Keep modules with small layers in FP32 "
            "(halfguard.fp32_island), so that autocast casts less often.",
        )


def _little_to_gain(base: PrecisionCost, share: float) -> Reason:
    percent = f"{share:.0%}" if share >= 0.01 else "less than 1%"
    products = (
        f"Only matrix products get faster in half. They are {percent} of a step in {base.precision}, at the "
        "speed of this machine."
    )
    if (base.seconds or 0.0) / max(base.operations, 1) < SHORT_OPERATION:
        return Reason(
            why=f"The model is too small for this machine. {products} The rest is {base.operations} small "
            "operations, which take the same time in any precision.",
            cure="Make operations larger: a larger batch, fused operations (torch.compile, a fused "
            "optimizer). If neither is possible, FP32 is the right choice for this model.",
        )
    return Reason(
        why=f"{products} The rest moves data: elementwise operations, normalisation, the optimizer.",
        cure="Fuse operations that move data (torch.compile, a fused optimizer, "
        "scaled_dot_product_attention), then measure again.",
    )
