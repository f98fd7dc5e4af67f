"""The wrappers of torch.distributed around a model: see through them, and hold their gradients back.

FSDP2 has no public way to run one step in another precision. The policy that ``fully_shard`` was given is
kept in each module's state and read again at every unshard, so it is exchanged there for the length of one
repeated step; ``tests/dist`` fails if a new torch keeps it elsewhere.

Loading FSDP and DTensor takes longer than all of halfguard. A program that uses them has loaded them, so they
are looked up among the loaded modules and never imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
    from torch.distributed.tensor import DTensor, Placement

_WIDE = (torch.float32, torch.float64)


def is_spread(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is a DTensor, of which this rank may hold only a part."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensor, loaded.DTensor)


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """The modules of a model to which ``fully_shard`` was applied."""
    loaded = sys.modules.get("torch.distributed.fsdp")
    if loaded is None:
        return []
    return [module for module in model.modules() if isinstance(module, loaded.FSDPModule)]


def reduce_partial(parameter: Tensor) -> None:
    """Add up a gradient that is still in parts, as sequence parallelism leaves it."""
    grad = parameter.grad
    if grad is not None and is_spread(grad) and any(p.is_partial() for p in grad.placements):
        assert is_spread(parameter)  # noqa: S101 - a gradient lies where its parameter does
        parameter.grad = grad.redistribute(placements=parameter.placements)


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own model, whose parameters have the user's own names: neither DDP's nor torch.compile's."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif _is_compiled(model):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def _is_compiled(model: nn.Module) -> bool:
    loaded = sys.modules.get("torch._dynamo.eval_frame")
    return loaded is not None and isinstance(model, loaded.OptimizedModule)


def is_sharded(model: nn.Module) -> bool:
    """Whether this rank holds only a part of some parameter."""
    return any(is_spread(parameter) for parameter in model.parameters())


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies on this rank, sharing its memory."""
    return tensor.to_local() if is_spread(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """A tensor that is spread over ranks, brought together; every rank must ask."""
    return tensor.full_tensor() if is_spread(tensor) else tensor


@dataclass(frozen=True)
class Shard:
    """A copy, on the host, of this rank's part of a DTensor, and how to make it one again."""

    part: Tensor
    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: DTensor) -> Shard:
        """Copy the part that lies here."""
        part = tensor.to_local().detach().to("cpu", copy=True)
        return cls(part, tensor.device_mesh, tensor.placements, tensor.shape, tensor.stride())

    def spread(self) -> Tensor:
        """Another copy, as a DTensor again."""
        return sys.modules["torch.distributed.tensor"].DTensor.from_local(  # type: ignore[no-any-return]
            self.part.to(self.mesh.device_type, copy=True),
            self.mesh,
            self.placements,
            run_check=False,
            shape=self.shape,
            stride=self.stride,
        )


class Wrappers:
    """The modules of a model that reduce gradients among ranks; what they are asked to do, all of them do."""

    def __init__(self, model: nn.Module) -> None:
        self._replicated = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
        self._sharded = sharded_modules(model)

    @property
    def joining(self) -> bool:
        """Whether ranks that run out of data shadow the others (``with model.join():``)."""
        return any(module._join_config.enable for module in self._replicated)

    def holding_gradients_back(self, hold: bool) -> AbstractContextManager[Any]:
        """Keep the gradients of a forward and backward pass on each rank, to be reduced with later ones."""
        for sharded in self._sharded:
            sharded.set_requires_gradient_sync(not hold, recurse=False)
        held = ExitStack()
        for module in self._replicated if hold else ():
            held.enter_context(module.no_sync())
        return held

    def forget_gradients(self) -> None:
        """Drop what FSDP2 has gathered of a step that is given up, and keeps where no optimizer looks."""
        for parameter in (p for sharded in self._sharded for p in _fsdp_parameters(sharded)):
            parameter.unsharded_accumulated_grad = None
            if hasattr(parameter, "_unsharded_param"):
                parameter._unsharded_param.grad = None


def _fsdp_groups(module: FSDPModule) -> list[Any]:
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # since torch 2.13; before, one or none
    return list(filter(None, [state._fsdp_param_group] if groups is None else groups))


def _fsdp_parameters(module: FSDPModule) -> list[Any]:
    return [parameter for group in _fsdp_groups(module) for parameter in group.fsdp_params]


def widen(model: nn.Module) -> Callable[[], None]:
    """Let FSDP2 gather and reduce parameters in their own dtype; returns what puts its policy back."""
    modules = sharded_modules(model)
    before = [module._get_fsdp_state()._mp_policy for module in modules]

    def put_back() -> None:
        for module, policy in zip(modules, before, strict=True):
            _set_policy(module, policy)

    for module, policy in zip(modules, before, strict=True):
        _set_policy(module, _widened(policy))
    return put_back


def _widened(policy: MixedPrecisionPolicy) -> MixedPrecisionPolicy:
    # An output that was asked for in FP32 stays; one in half would overflow where the step did.
    output = policy.output_dtype if policy.output_dtype in _WIDE else None
    return replace(policy, param_dtype=None, reduce_dtype=None, output_dtype=output)


def _set_policy(module: FSDPModule, policy: MixedPrecisionPolicy) -> None:
    module.reshard()
    state: Any = module._get_fsdp_state()
    state._mp_policy = policy
    for group in _fsdp_groups(module):
        group.mp_policy = policy
        group._init_mp_dtypes()
        for parameter in group.fsdp_params:
            # Room for the gathered parameter has its old dtype, and is made anew where there is none.
            parameter.all_gather_outputs = []
            vars(parameter).pop("_unsharded_param", None)
