"""List changes that make a step smaller: pure arithmetic on the parts of its memory.

A change is a function from memory to memory, so changes can be combined without counting an effect twice:
after half the micro-batch, checkpointing frees half as much. A change applies to both moments that can be the
peak of a step, and the larger one afterwards is the new peak. With fewer activations that is soon the
optimizer's step, which changes to the forward pass do not make smaller. Effects that are only roughly known
are left out, so a saving is a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from halfguard.records.cost import MemoryParts, MemorySaving, StepMemory

EIGHT_BIT = (
    1 + 4 / 256
) / 4  # of float32 state: 1 byte per value, one float32 scale per block of 256
NOTICEABLE = 0.02  # share of the peak; a change that saves less is not listed
RANK = 8  # of the proposed adapters
Change = Callable[[StepMemory], StepMemory]


@dataclass(frozen=True)
class MemoryFacts:
    """The memory of a step, and facts about the job that changes to it depend on."""

    memory: StepMemory
    half: StepMemory | None = None  # of the same step in 16 bits, if memory is of FP32
    half_name: str = ""
    blocks: str = ""  # the container whose blocks would be checkpointed
    block_count: int = 0
    freed_bytes: int = 0  # activations that checkpointing these blocks frees
    trained: int = 0  # elements that are trained
    adapters: int = 0  # elements of adapters in their place
    large_state: int = 0  # bytes of optimizer state in FP32 tensors large enough to quantise


def list_savings(facts: MemoryFacts) -> tuple[MemorySaving, ...]:
    """List changes in the order to try them: 16 bits if measured, those with the same result, the others."""
    found: list[MemorySaving] = []
    start, now = facts.memory.peak, facts.memory
    for change, how, same, apply in _changes(facts):
        alone = max(0, start - apply(facts.memory).peak)
        if alone < NOTICEABLE * start and apply(facts.memory) is not facts.half:
            continue
        now = apply(now)
        found.append(
            MemorySaving(change=change, how=how, saves=alone, peak=now.peak, same_result=same)
        )
    return tuple(found)


def _changes(facts: MemoryFacts) -> Iterator[tuple[str, str, bool, Change]]:
    if facts.half is not None:
        half = facts.half
        yield f"train in {facts.half_name}", _AUTOCAST, False, lambda _: half
    yield "half the micro-batch, accumulate twice as many", _ACCUMULATE, True, _halved
    if facts.freed_bytes > 0:
        name = f"checkpoint the {facts.block_count} blocks of {facts.blocks!r}"
        yield name, _CHECKPOINT, True, _freed(facts)
    if facts.large_state:
        yield "an optimizer with 8-bit state", _EIGHT_BIT_HOW, False, _quantised(facts)
    if 0 < facts.adapters < facts.trained:
        name = f"train adapters of rank {RANK} on a frozen half base"
        yield name, _ADAPTERS, False, _adapted(facts)


_AUTOCAST = "Measured here. Weights, gradients and optimizer state stay FP32; activations shrink."
_ACCUMULATE = (
    "GuardConfig(accumulate=...), accumulate_grad_batches or gradient_accumulation_steps. The update is "
    "the same, unless the model has BatchNorm, which then gets smaller batches."
)
_CHECKPOINT = (
    "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False), or "
    "model.gradient_checkpointing_enable() in transformers. The results are the same. The forward pass of "
    "these blocks is computed twice."
)
_EIGHT_BIT_HOW = (
    "bitsandbytes.optim.AdamW8bit or torchao.optim.AdamW8bit. Moments are rounded, weights are not: "
    "compare with halfguard validate."
)
_ADAPTERS = (
    "LoRA, as in peft. Keep the adapters FP32 with halfguard.upcast_trainable(model). This trains another "
    "model: compare with halfguard validate."
)


def _change_parts(
    memory: StepMemory, change: Callable[[MemoryParts], dict[str, float]]
) -> StepMemory:
    """Apply a change of the parts at every moment."""

    def changed(parts: MemoryParts) -> MemoryParts:
        rounded = {name: max(0, round(value)) for name, value in change(parts).items()}
        return parts.model_copy(update=rounded)

    moments = ("largest", "in_pass", "in_update")
    return memory.model_copy(update={name: changed(getattr(memory, name)) for name in moments})


def _halved(memory: StepMemory) -> StepMemory:
    return _change_parts(memory, lambda p: {"activations": p.activations / 2})


def _freed(facts: MemoryFacts) -> Change:
    share = 1 - facts.freed_bytes / max(facts.memory.largest.activations, facts.freed_bytes)
    return lambda memory: _change_parts(memory, lambda p: {"activations": p.activations * share})


def _quantised(facts: MemoryFacts) -> Change:
    saved = facts.large_state * (1 - EIGHT_BIT)
    return lambda memory: _change_parts(memory, lambda p: {"optimizer": p.optimizer - saved})


def _adapted(facts: MemoryFacts) -> Change:
    share = facts.adapters / facts.trained
    return lambda memory: _change_parts(
        memory,
        lambda p: {
            "weights": p.weights * (0.5 + share),
            "gradients": p.gradients * share,
            "optimizer": p.optimizer * share,
        },
    )
