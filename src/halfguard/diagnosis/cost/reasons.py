"""Why a step in half is not faster; each reason with what can be done about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from halfguard.records.cost import Cost, PrecisionCost

SMALL = 0.3  # share of a step below which faster matrix products change little
BRIEF = 30e-6  # seconds an operation, below which a step is mostly Python and launches
FAST = 0.8  # time of a half matrix product over FP32's, below which half counts as fast
CASTING = 0.2  # share of operations that are casts


class Reason(NamedTuple):
    """A sentence of cause and a sentence of cure."""

    why: str
    cure: str


def slow_because(cost: Cost, base: PrecisionCost, other: PrecisionCost) -> Iterator[Reason]:
    """The reasons that the measurements show, the one that outweighs the others first."""
    if other.matmul_ratio is not None and other.matmul_ratio > FAST:
        yield Reason(
            why="Matrix products gain nothing from it on this machine: a large one takes "
            f"{other.matmul_ratio:.2f} of the time of FP32.",
            cure="Train in FP32 on this machine, or in another 16-bit precision if that one is fast here; "
            'halfguard doctor --gpu "NAME" says what a card can do.',
        )
    if base.seconds and cost.product_flops:
        share = base.flops / cost.product_flops / base.seconds
        if share < SMALL:
            yield _little_to_gain(base, share)
    if cost.fp32_products != "highest":
        yield Reason(
            why="FP32 is already fast here: its matrix products run in TF32 or less (float32 matmul "
            f"precision {cost.fp32_products!r}), on the same units as half.",
            cure="Nothing is wrong: TF32 has taken most of the gain. For an honest FP32 baseline call "
            'torch.set_float32_matmul_precision("highest").',
        )
    if other.operations and other.casts / other.operations > CASTING:
        extra = other.operations - base.operations
        yield Reason(
            why=f"{other.casts} of its {other.operations} operations are casts ({extra:+d} operations "
            f"against {base.precision}).",
            cure="Casts pay off when the layer behind them is large. Keep modules of tiny layers in FP32 "
            "(halfguard.fp32_island), so that autocast does not go in and out of half.",
        )


def _little_to_gain(base: PrecisionCost, share: float) -> Reason:
    percent = f"{share:.0%}" if share >= 0.01 else "less than 1%"
    products = (
        f"Matrix products, where half can gain, are {percent} of a step in {base.precision}, at the speed of "
        "this machine."
    )
    if (base.seconds or 0.0) / max(base.operations, 1) < BRIEF:
        return Reason(
            why=f"The model is too small for this machine. {products} The rest is {base.operations} small "
            "operations, which cost the same in any precision.",
            cure="Give the machine more to do at once: a larger batch, fused operations (torch.compile, a "
            "fused optimizer). If neither is possible, FP32 is the right choice for this model.",
        )
    return Reason(
        why=f"{products} The rest moves data: elementwise operations, normalisation, the optimizer.",
        cure="Fuse what moves data (torch.compile, a fused optimizer, scaled_dot_product_attention), then "
        "measure again.",
    )
