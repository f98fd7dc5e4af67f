"""The dtypes in which FSDP2 stores, computes and reduces each group of parameters.

The policy that was passed to ``fully_shard`` is only a request, and each module may have another one. These
are the dtypes that torch itself derives from it, read from the groups after sharding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from halfguard.dist.wrapping import fsdp_groups, sharded_modules


@dataclass(frozen=True)
class ShardedDtypes:
    """The dtypes of the parameters that one call of ``fully_shard`` groups."""

    module: str  # its name in the model; empty for the whole model
    stored: torch.dtype  # of the shards, which the optimizer updates
    computed: torch.dtype  # of the gathered parameters in forward and backward passes
    reduced: torch.dtype  # of gradients while ranks add them, and of sums of micro-batches before that
    parameters: tuple[str, ...] = ()


def sharded_dtypes(model: nn.Module) -> list[ShardedDtypes]:
    """Return the dtypes of every group of a model, in the order of its modules; empty without FSDP2."""
    names = {id(module): name for name, module in model.named_modules()}
    parameters = {id(p): name for name, p in model.named_parameters()}
    return [
        found
        for module in sharded_modules(model)
        for found in _of_groups(module, names[id(module)], parameters)
    ]


def cast_outputs(model: nn.Module) -> dict[nn.Module, torch.dtype]:
    """Return the modules whose outputs FSDP2 casts on their way to the caller, and the dtype.

    They are the outermost sharded modules: what an inner one returns stays in the model.
    """
    sharded: list[Any] = sharded_modules(model)
    inner = {id(part) for module in sharded for part in module.modules() if part is not module}
    outer = [module for module in sharded if id(module) not in inner]
    dtypes = ((module, module._get_fsdp_state()._mp_policy.output_dtype) for module in outer)
    return {module: dtype for module, dtype in dtypes if dtype is not None}


def _of_groups(module: Any, name: str, names: dict[int, str]) -> Iterator[ShardedDtypes]:
    for group in fsdp_groups(module):
        for stored in dict.fromkeys(p.sharded_param.dtype for p in group.fsdp_params):
            of_dtype = [p for p in group.fsdp_params if p.sharded_param.dtype == stored]
            policy = getattr(of_dtype[0], "mp_policy", None) or group.mp_policy
            computed = policy.param_dtype or stored
            yield ShardedDtypes(
                module=name,
                stored=stored,
                computed=computed,
                reduced=policy.reduce_dtype or computed,
                parameters=tuple(names.get(id(p.sharded_param), "") for p in of_dtype),
            )
