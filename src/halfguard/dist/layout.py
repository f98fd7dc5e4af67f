"""The distribution of parameters over ranks: the ranks that hold the same values of each parameter.

There are three kinds of parameters. A plain tensor in a DistributedDataParallel model is held by every rank
of its group. A DTensor (FSDP2, HSDP, tensor parallelism) is held by those ranks of its mesh that differ only
in dimensions along which it is replicated. Any other parameter is held by one rank alone: an expert that DDP
was told to ignore, a pipeline stage. From this follow

- the share of a rank in a global norm: replicated values count once, not once per rank;
- whether an overflow on one rank appears in the gradients of all ranks: then it need not be communicated;
- the ranks that must have bitwise equal values, which ``guard.desync`` checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from halfguard.dist.collectives import all_agree, rank, world_size
from halfguard.dist.wrapping import is_dtensor

if TYPE_CHECKING:
    from torch.distributed.tensor import Placement


@dataclass(frozen=True)
class Holders:
    """The ranks that hold the same values of a parameter, in order."""

    ranks: tuple[int, ...] | None = None  # None: all ranks

    @property
    def count(self) -> int:
        return world_size() if self.ranks is None else len(self.ranks)

    @property
    def position(self) -> int:
        """The index of this rank among them."""
        return rank() if self.ranks is None else self.ranks.index(rank())


ALL = Holders()


@dataclass(frozen=True)
class Layout:
    """The distribution of one model's parameters over the ranks."""

    holders: tuple[Holders, ...]  # one per parameter
    overflow_reaches_all: bool  # True if gradients carry an overflow on any rank to every rank
    replicated: bool  # True if every rank holds everything

    @property
    def shares(self) -> list[float]:
        """The weight of this rank's part of each parameter in a sum over all ranks."""
        return [1 / holders.count for holders in self.holders]

    def agreed(self, before: Layout | None, device: torch.device) -> Layout:
        """Return this layout with what holds on every rank: one of them may have an expert that others lack.

        Every rank must call this, unless the layout ``before`` shows that ranks add up their parts anyway:
        then one of them may replace its own parameters alone.
        """
        if before is not None and not before.overflow_reaches_all:
            return replace(self, overflow_reaches_all=False, replicated=False)
        return replace(
            self,
            overflow_reaches_all=all_agree(self.overflow_reaches_all, device),
            replicated=all_agree(self.replicated, device),
        )


def find_layout(model: nn.Module, parameters: Sequence[Tensor]) -> Layout:
    """Find the layout of a wrapped model; ``parameters`` are those that its optimizers update."""
    if world_size() == 1:
        alone = (Holders((0,)),) * len(parameters)
        return Layout(alone, overflow_reaches_all=True, replicated=True)
    in_ddp = _find_ddp_holders(model)
    holders = tuple(
        _find_mesh_holders(p.device_mesh, p.placements)
        if is_dtensor(p)
        else in_ddp.get(id(p), Holders((rank(),)))
        for p in parameters
    )
    replicated = all(held == ALL for held in holders)
    return Layout(holders, replicated or _share_one_mesh(parameters), replicated)


@lru_cache(maxsize=64)
def _find_mesh_holders(mesh: DeviceMesh, placements: tuple[Placement, ...]) -> Holders:
    root, placed = _extend_to_root_mesh(mesh, placements)
    here = root.get_coordinate()
    if here is None:
        return Holders((rank(),))
    index = tuple(
        slice(None) if placement is None or placement.is_replicate() else coordinate
        for placement, coordinate in zip(placed, here, strict=True)
    )
    ranks = tuple(root.mesh[index].reshape(-1).tolist())
    return ALL if len(ranks) == world_size() else Holders(ranks)


def _extend_to_root_mesh(
    mesh: DeviceMesh, placements: tuple[Placement, ...]
) -> tuple[DeviceMesh, Sequence[Placement | None]]:
    """Return the mesh that a submesh was sliced from; along the other dimensions values are replicated."""
    if hasattr(mesh, "_get_root_mesh"):
        root = mesh._get_root_mesh()
    else:  # torch 2.9
        root = device_mesh._mesh_resources.get_root_mesh(mesh)
    by_name = dict(zip(mesh.mesh_dim_names or (), placements, strict=False))
    names = root.mesh_dim_names or ()
    if root is mesh or not by_name.keys() <= set(names):
        return mesh, placements
    return root, [by_name.get(name) for name in names]


def _share_one_mesh(parameters: Iterable[Tensor]) -> bool:
    """Return whether all have one mesh and one sharding: then torch reduces found_inf and norms itself."""
    kinds = {(p.device_mesh, p.placements) if is_dtensor(p) else None for p in parameters}
    kind = kinds.pop() if len(kinds) == 1 else None
    return kind is not None and kind[0].size() == world_size()


def _find_ddp_holders(model: nn.Module) -> dict[int, Holders]:
    found: dict[int, Holders] = {}
    for module in model.modules():
        if not isinstance(module, DistributedDataParallel):
            continue
        group = module.process_group
        all_ranks = group.size() == world_size()
        held = ALL if all_ranks else Holders(tuple(dist.get_process_group_ranks(group)))
        ignored = module.parameters_to_ignore
        found |= {id(p): held for n, p in module.module.named_parameters() if n not in ignored}
    return found
