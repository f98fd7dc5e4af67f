"""Dtypes that were declared for a model, against those in which FSDP2 stores, computes and adds."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from halfguard.diagnosis.model.measured_precision import dtype_name
from halfguard.diagnosis.model.training_setup import TrainingSetup, join_names
from halfguard.dist.sharded_dtypes import ShardedDtypes, sharded_dtypes
from halfguard.precision.islands import is_fp32_island
from halfguard.precision.modes import HALF_DTYPES, autocast_dtype
from halfguard.records.finding import Finding

_KEPT = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")  # of transformers' models
_POLICY = "MixedPrecisionPolicy(param_dtype={}, reduce_dtype=torch.float32)"


def check_hd121(setup: TrainingSetup) -> Iterator[Finding]:
    """Find differences between declared and effective dtypes of a model that FSDP2 shards."""
    groups = [] if setup.model is None else sharded_dtypes(setup.model)
    if setup.model is None or not groups:
        return
    yield from _computed_otherwise(setup, groups)
    yield from _flattened(setup.model, groups)
    yield from _added_in_half(groups)
    yield from _kept_in_half(setup, groups)


def _computed_otherwise(setup: TrainingSetup, groups: list[ShardedDtypes]) -> Iterator[Finding]:
    """Report a requested precision that no group has; with autocast on, the policy may leave it to that."""
    wanted = None if setup.asked is None else autocast_dtype(setup.asked) or torch.float32
    halves = {group.computed for group in groups if group.computed in HALF_DTYPES}
    if wanted is None or not halves or wanted in halves:
        return
    runs = join_names(sorted(map(dtype_name, halves)))
    yield _finding(
        f"{setup.asked} was requested, and FSDP2 computes in {runs}.",
        why="fully_shard's policy decides in which dtype weights are gathered, whatever was requested.",
        cure=_POLICY.format(wanted),
    )


def _flattened(model: nn.Module, groups: list[ShardedDtypes]) -> Iterator[Finding]:
    in_half = {
        name for group in groups if group.computed in HALF_DTYPES for name in group.parameters
    }
    found = [name for name in _islands(model) if any(p.startswith(f"{name}.") for p in in_half)]
    if found:
        yield _finding(
            f"FP32 islands are gathered in half by FSDP2: {join_names(found)}.",
            subject=found[0],
            why="param_dtype casts all parameters of a group, also those that were to stay FP32.",
            cure="fully_shard(island, mp_policy=MixedPrecisionPolicy())  # before the model around it",
        )


def _islands(model: nn.Module) -> Iterator[str]:
    """Yield modules that were declared FP32: our islands, and what a class of transformers names."""
    kept = {part for key in _KEPT for part in (getattr(model, key, None) or ())}
    for name, module in model.named_modules():
        if name and (is_fp32_island(module) or name.rpartition(".")[2] in kept):
            yield name


def _added_in_half(groups: list[ShardedDtypes]) -> Iterator[Finding]:
    found = [group for group in groups if group.reduced in HALF_DTYPES]
    if found:
        dtype = dtype_name(found[0].reduced)
        yield _finding(
            f"Gradients of ranks and of micro-batches are added in {dtype}: {_names(found)}.",
            subject=found[0].module or None,
            why="What is small beside the sum is lost, more with every rank and micro-batch.",
            cure=_POLICY.format(found[0].computed),
        )


def _kept_in_half(setup: TrainingSetup, groups: list[ShardedDtypes]) -> Iterator[Finding]:
    stored = [group for group in groups if group.stored in HALF_DTYPES]
    states = {
        value.dtype
        for optimizer in setup.optimizers
        for held in optimizer.state.values()
        for value in held.values()
        if isinstance(value, torch.Tensor) and value.dtype in HALF_DTYPES
    }
    if not stored and not states:
        return
    what = f"The shards of {_names(stored)} are" if stored else "The optimizer's state is"
    dtype = dtype_name(stored[0].stored if stored else states.pop())
    yield _finding(
        f"{what} kept in {dtype}.",
        why="Small updates are rounded away, and gradients that are reduced are added in this dtype.",
        cure="model.float()  # before fully_shard; param_dtype casts what is computed",
    )


def _names(groups: list[ShardedDtypes]) -> str:
    return join_names(group.module or "the model itself" for group in groups)


def _finding(message: str, *, why: str, cure: str, subject: str | None = None) -> Finding:
    return Finding(
        code="HD121", severity="warning", message=message, subject=subject, why=why, cure=cure
    )
