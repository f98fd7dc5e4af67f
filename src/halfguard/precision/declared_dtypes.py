"""Dtypes that were declared for a run, against those in which FSDP2 stores, computes and adds.

The copy of a model that generates rollouts belongs to the declaration as well: in another dtype than the
model that trains, its log-probabilities are those of another policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from halfguard.dist.sharded_dtypes import ShardedDtypes, sharded_dtypes
from halfguard.formats import dtype_name
from halfguard.precision.islands import is_fp32_island
from halfguard.precision.modes import HALF_DTYPES, autocast_dtype
from halfguard.precision_names import Precision

_KEPT = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")  # of transformers' models
_POLICY = "MixedPrecisionPolicy(param_dtype={}, reduce_dtype=torch.float32)"
_REDUCE = "halfguard.integrations.accelerate.reduce_in_fp32(accelerator)"
_NAMED = 3  # modules in one message


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What runs in another dtype than declared."""

    message: str
    why: str
    cure: str
    subject: str | None = None


def declared_differences(
    model: nn.Module,
    optimizers: Iterable[Optimizer],
    asked: str | None,
    *,
    rollout: Any = None,
    autocasts: bool = True,
) -> Iterator[Difference]:
    """Yield what runs in another dtype than declared.

    ``asked`` is the requested precision. With ``autocasts``, FP32 in FSDP2's policy is no difference: the
    forward pass may be lowered by autocast. ``rollout`` is a module, or vLLM's ``LLM``.
    """
    wanted = None if asked not in set(Precision) else autocast_dtype(asked) or torch.float32
    groups = sharded_dtypes(model)
    computed = {group.computed for group in groups if group.computed in HALF_DTYPES}
    if groups:
        yield from _computed_otherwise(asked, wanted, computed, autocasts=autocasts)
        yield from _flattened(model, groups)
        yield from _added_in_half(groups)
        yield from _kept_in_half(optimizers, groups)
    trained = computed or ({wanted} if wanted is not None else set())
    yield from _generated_otherwise(rollout, trained)


def rollout_of(trainer: Any) -> Any:
    """Return the engine that generates in the process of one of TRL's trainers, or None."""
    return getattr(getattr(trainer, "vllm_generation", trainer), "llm", None)


def _computed_otherwise(
    asked: str | None, wanted: torch.dtype | None, halves: set[torch.dtype], *, autocasts: bool
) -> Iterator[Difference]:
    """Report a requested precision that no group has."""
    runs = halves or (set() if autocasts else {torch.float32})
    if wanted is None or not runs or wanted in runs:
        return
    yield Difference(
        message=(
            f"{asked} was requested, but FSDP2 computes in {_join(sorted(map(dtype_name, runs)))}."
        ),
        why=(
            "The policy of fully_shard determines the dtype in which weights are gathered, "
            "regardless of the requested dtype."
        ),
        cure=_POLICY.format(wanted),
    )


def _flattened(model: nn.Module, groups: list[ShardedDtypes]) -> Iterator[Difference]:
    in_half = {
        name for group in groups if group.computed in HALF_DTYPES for name in group.parameters
    }
    found = [name for name in _islands(model) if any(p.startswith(f"{name}.") for p in in_half)]
    if found:
        yield Difference(
            message=f"FSDP2 gathers FP32 islands in 16-bit precision: {_join(found)}.",
            subject=found[0],
            why=(
                "param_dtype casts all parameters of a group, including those that must stay in "
                "FP32."
            ),
            cure="fully_shard(island, mp_policy=MixedPrecisionPolicy())  # before the model around it",
        )


def _islands(model: nn.Module) -> Iterator[str]:
    """Yield modules that were declared FP32: our islands, and what a class of transformers names."""
    kept = {part for key in _KEPT for part in (getattr(model, key, None) or ())}
    for name, module in model.named_modules():
        if name and (is_fp32_island(module) or name.rpartition(".")[2] in kept):
            yield name


def _added_in_half(groups: list[ShardedDtypes]) -> Iterator[Difference]:
    found = [group for group in groups if group.reduced in HALF_DTYPES]
    if found:
        dtype = dtype_name(found[0].reduced)
        yield Difference(
            message=f"Gradients of ranks and micro-batches are added in {dtype}: {_names(found)}.",
            subject=found[0].module or None,
            why=(
                "Values that are small compared with the sum are lost. More ranks or "
                "micro-batches lose more."
            ),
            cure=f"{_POLICY.format(found[0].computed)}; Accelerate and Trainer: {_REDUCE}",
        )


def _kept_in_half(
    optimizers: Iterable[Optimizer], groups: list[ShardedDtypes]
) -> Iterator[Difference]:
    stored = [group for group in groups if group.stored in HALF_DTYPES]
    states = {
        value.dtype
        for optimizer in optimizers
        for held in optimizer.state.values()
        for value in held.values()
        if isinstance(value, torch.Tensor) and value.dtype in HALF_DTYPES
    }
    if not stored and not states:
        return
    what = f"The shards of {_names(stored)} are" if stored else "The optimizer's state is"
    dtype = dtype_name(stored[0].stored if stored else states.pop())
    yield Difference(
        message=f"{what} stored in {dtype}.",
        why="Small updates are rounded away, and reduced gradients are added in this dtype.",
        cure=(
            "model.float()  # before fully_shard; param_dtype casts the weights for the computation"
        ),
    )


def _generated_otherwise(rollout: Any, trained: set[torch.dtype]) -> Iterator[Difference]:
    dtype = _rollout_dtype(rollout)
    if dtype is None or not trained or dtype in trained:
        return
    computes = _join(sorted(map(dtype_name, trained)))
    yield Difference(
        message=f"The rollout copy is {dtype_name(dtype)}, but the trained model computes in {computes}.",
        why="They round differently, so the ratios of their probabilities are not 1.",
        cure=f'LLM(..., dtype="{computes}"), or rollout.to(torch.{computes})',
    )


def _rollout_dtype(rollout: Any) -> torch.dtype | None:
    """Return the dtype of most weights of a module, or of the model in a vLLM engine."""
    if isinstance(rollout, nn.Module):
        sizes = Counter[torch.dtype]()
        for parameter in rollout.parameters():
            if parameter.is_floating_point():
                sizes[parameter.dtype] += parameter.numel()
        return sizes.most_common(1)[0][0] if sizes else None
    engine = getattr(rollout, "llm_engine", None)
    found = getattr(getattr(engine, "model_config", None), "dtype", None)
    return found if isinstance(found, torch.dtype) else None


def _names(groups: list[ShardedDtypes]) -> str:
    return _join([group.module or "the model itself" for group in groups])


def _join(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
