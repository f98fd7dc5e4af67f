"""What to change first when a step does not fit: pure arithmetic on the parts of its memory.

A change is a function from memory to memory, so changes can be put one upon the other and their effects do
not count twice: checkpointing after half the micro-batch frees half of what it would have freed. It changes
both moments that can be a step's peak, and the larger one afterwards is the new peak: with fewer activations
that soon is the optimizer's step, which no change of the forward pass makes smaller. What is known only
roughly is left out, so a saving is a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from halfguard.records.cost import MemoryParts, Saving, StepMemory

EIGHT_BIT = (1 + 4 / 256) / 4  # of float32 state: a byte a value, a float32 scale a block of 256
NOTICEABLE = 0.02  # of the peak; a change that saves less is not worth a line
RANK = 8  # of the adapters that are proposed
Change = Callable[[StepMemory], StepMemory]


@dataclass(frozen=True)
class Situation:
    """What is known of a job besides the memory of its step."""

    memory: StepMemory
    half: StepMemory | None = None  # of the same step in 16 bits, if it runs in FP32 now
    half_name: str = ""
    blocks: str = ""  # the container whose blocks would be checkpointed
    block_count: int = 0
    frees: int = 0  # activations that checkpointing them frees
    trained: int = 0  # parameters that are trained
    adapters: int = 0  # parameters of adapters in their place
    large_state: int = 0  # bytes of optimizer state in FP32 tensors worth quantising


def savings(case: Situation) -> tuple[Saving, ...]:
    """The changes in the order to try them: 16 bits if measured, what computes the same, then the rest."""
    found: list[Saving] = []
    start, now = case.memory.peak, case.memory
    for change, how, same, apply in _changes(case):
        alone = max(0, start - apply(case.memory).peak)
        if alone < NOTICEABLE * start and apply(case.memory) is not case.half:
            continue
        now = apply(now)
        found.append(Saving(change=change, how=how, saves=alone, peak=now.peak, same_result=same))
    return tuple(found)


def _changes(case: Situation) -> Iterator[tuple[str, str, bool, Change]]:
    if case.half is not None:
        half = case.half
        yield f"train in {case.half_name}", _AUTOCAST, False, lambda _: half
    yield "half the micro-batch, accumulate twice as many", _ACCUMULATE, True, _halved
    if case.frees > 0:
        name = f"checkpoint the {case.block_count} blocks of {case.blocks!r}"
        yield name, _CHECKPOINT, True, _freed(case)
    if case.large_state:
        yield "an optimizer with 8-bit state", _EIGHT_BIT_HOW, False, _quantised(case)
    if 0 < case.adapters < case.trained:
        name = f"train adapters of rank {RANK} over a frozen half base"
        yield name, _ADAPTERS, False, _adapted(case)


_AUTOCAST = "Measured here. Weights, gradients and optimizer state stay FP32; activations shrink."
_ACCUMULATE = (
    "GuardConfig(accumulate=...), accumulate_grad_batches or gradient_accumulation_steps. The update is "
    "the same, unless the model has BatchNorm, which then sees smaller batches."
)
_CHECKPOINT = (
    "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False), or "
    "model.gradient_checkpointing_enable() in transformers. The same numbers; the forward pass of these "
    "blocks is computed twice."
)
_EIGHT_BIT_HOW = (
    "bitsandbytes.optim.AdamW8bit or torchao.optim.AdamW8bit. Moments are rounded, weights are not: "
    "compare with halfguard validate."
)
_ADAPTERS = (
    "LoRA, as in peft; keep the adapters FP32 with halfguard.upcast_trainable(model). Another model is "
    "trained: compare with halfguard validate."
)


def _everywhere(
    memory: StepMemory, change: Callable[[MemoryParts], dict[str, float]]
) -> StepMemory:
    """The same change of the parts at every moment."""

    def changed(parts: MemoryParts) -> MemoryParts:
        whole = {name: max(0, round(value)) for name, value in change(parts).items()}
        return parts.model_copy(update=whole)

    moments = ("largest", "in_pass", "in_update")
    return memory.model_copy(update={name: changed(getattr(memory, name)) for name in moments})


def _halved(memory: StepMemory) -> StepMemory:
    return _everywhere(memory, lambda p: {"activations": p.activations / 2})


def _freed(case: Situation) -> Change:
    share = 1 - case.frees / max(case.memory.largest.activations, case.frees)
    return lambda memory: _everywhere(memory, lambda p: {"activations": p.activations * share})


def _quantised(case: Situation) -> Change:
    saved = case.large_state * (1 - EIGHT_BIT)
    return lambda memory: _everywhere(memory, lambda p: {"optimizer": p.optimizer - saved})


def _adapted(case: Situation) -> Change:
    share = case.adapters / case.trained
    return lambda memory: _everywhere(
        memory,
        lambda p: {
            "weights": p.weights * (0.5 + share),
            "gradients": p.gradients * share,
            "optimizer": p.optimizer * share,
        },
    )
