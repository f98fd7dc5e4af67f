"""How parameters are spread over the ranks: who holds the same values, and whose gradients tell everybody.

Three kinds of parameters occur. A plain tensor in a DistributedDataParallel model is held by every rank of
its group. A DTensor (FSDP2, HSDP, tensor parallelism) is held by those ranks of its mesh that differ only in
dimensions along which it is replicated. Everything else is held by each rank for itself: an expert that DDP
was told to ignore, a pipeline stage. From this follow

- the share of a rank in a global norm: its values count once, not once for each holder;
- whether an overflow on one rank shows in the gradients of all: then nothing about it need be sent;
- who must have bitwise the same values as whom, which ``guard.desync`` checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from halfguard.dist.collectives import rank, world_size
from halfguard.dist.wrapping import is_spread

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Placement


@dataclass(frozen=True)
class Holders:
    """The ranks that hold the same values of a parameter, in order."""

    ranks: tuple[int, ...] | None = None  # None: all of them, however many there are

    @property
    def count(self) -> int:
        """How many hold it."""
        return world_size() if self.ranks is None else len(self.ranks)

    @property
    def position(self) -> int:
        """Where this rank stands among them."""
        return rank() if self.ranks is None else self.ranks.index(rank())


ALL = Holders()


@dataclass(frozen=True)
class Layout:
    """How the parameters of one model lie on the ranks."""

    holders: tuple[Holders, ...]  # one a parameter
    carried: bool  # whether gradients carry an overflow on any rank to every rank
    replicated: bool  # whether every rank holds everything

    @property
    def shares(self) -> list[float]:
        """What this rank's part of each parameter counts in a sum over all ranks."""
        return [1 / holders.count for holders in self.holders]


def layout_of(model: nn.Module, parameters: Sequence[Tensor]) -> Layout:
    """Look at a model as it is wrapped; ``parameters`` are those that its optimizers update."""
    if world_size() == 1:
        return Layout((Holders((0,)),) * len(parameters), carried=True, replicated=True)
    in_ddp = _replicated_by_ddp(model)
    alone = Holders((rank(),))
    holders = tuple(
        _holders_of(p) if is_spread(p) else in_ddp.get(id(p), alone) for p in parameters
    )
    replicated = all(held == ALL for held in holders)
    return Layout(holders, replicated or _on_one_mesh(parameters), replicated)


def _holders_of(parameter: DTensor) -> Holders:
    return _holders_on_mesh(parameter.device_mesh, parameter.placements)


@lru_cache(maxsize=64)
def _holders_on_mesh(mesh: DeviceMesh, placements: tuple[Placement, ...]) -> Holders:
    root, placed = _over_the_whole_mesh(mesh, placements)
    here = root.get_coordinate()
    if here is None:
        return Holders((rank(),))
    index = tuple(
        slice(None) if placement is None or placement.is_replicate() else coordinate
        for placement, coordinate in zip(placed, here, strict=True)
    )
    ranks = tuple(root.mesh[index].reshape(-1).tolist())
    return ALL if len(ranks) == world_size() else Holders(ranks)


def _over_the_whole_mesh(
    mesh: DeviceMesh, placements: tuple[Placement, ...]
) -> tuple[DeviceMesh, Sequence[Placement | None]]:
    """The mesh that a part of it was cut from; along what was cut away, everybody holds the same."""
    root = mesh._get_root_mesh()
    by_name = dict(zip(mesh.mesh_dim_names or (), placements, strict=False))
    names = root.mesh_dim_names or ()
    if root is mesh or not by_name.keys() <= set(names):
        return mesh, placements
    return root, [by_name.get(name) for name in names]


def _on_one_mesh(parameters: Iterable[Tensor]) -> bool:
    """Whether torch itself reduces found_inf and norms over all ranks: one mesh, one way of sharding."""
    kinds = {(p.device_mesh, p.placements) if is_spread(p) else None for p in parameters}
    kind = kinds.pop() if len(kinds) == 1 else None
    return kind is not None and kind[0].size() == world_size()


def _replicated_by_ddp(model: nn.Module) -> dict[int, Holders]:
    found: dict[int, Holders] = {}
    for module in model.modules():
        if not isinstance(module, DistributedDataParallel):
            continue
        group = module.process_group
        everybody = group.size() == world_size()
        held = ALL if everybody else Holders(tuple(dist.get_process_group_ranks(group)))
        ignored = module.parameters_to_ignore
        found |= {id(p): held for n, p in module.module.named_parameters() if n not in ignored}
    return found
