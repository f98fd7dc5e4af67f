"""Work with models wrapped by torch.distributed: unwrap them, and control when gradients are reduced.

FSDP2 has no public way to run one step in another precision. The policy passed to ``fully_shard`` is stored
in each module's state, and with groups or parameters, and read at every unshard. So it is replaced there for
one repeated step; ``tests/dist`` fails if a new torch stores it elsewhere.

Importing FSDP and DTensor takes longer than importing all of halfguard. A program that uses them has already
imported them, so they are looked up in ``sys.modules`` and never imported here.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager
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


def is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    """Return whether a tensor is a DTensor, of which this rank may hold only a shard."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensor, loaded.DTensor)


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """Return the modules of a model to which ``fully_shard`` was applied."""
    loaded = sys.modules.get("torch.distributed.fsdp")
    if loaded is None:
        return []
    return [module for module in model.modules() if isinstance(module, loaded.FSDPModule)]


def reduce_partial(parameter: Tensor) -> None:
    """Sum a gradient that is still partial, as sequence parallelism leaves it."""
    grad = parameter.grad
    if grad is not None and is_dtensor(grad) and any(p.is_partial() for p in grad.placements):
        assert is_dtensor(parameter)  # noqa: S101 - a gradient is placed like its parameter
        parameter.grad = grad.redistribute(placements=parameter.placements)


def unwrap_model(model: nn.Module) -> nn.Module:
    """Remove DDP and torch.compile wrappers, so that parameters have the names in the user's model."""
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


def is_compiled(model: nn.Module) -> bool:
    """Return whether torch.compile was applied to a model or to one of its modules."""
    return any(
        _is_compiled(module) or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


@contextmanager
def unreduced_gradients(model: nn.Module) -> Iterator[None]:
    """Run the block with DDP's gradients left on each rank, as if it had not run; FSDP2 reduces as ever.

    DDP does not send buffers either: a rank may raise in the block before others wait for it. If it raises,
    FSDP2 is reset.
    """
    replicated = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
    before = [(module, module.require_forward_param_sync) for module in replicated]
    with ExitStack() as held:
        for module in replicated:
            held.enter_context(module.no_sync())
            module.require_forward_param_sync = False
        try:
            yield
        except BaseException:
            reset_sharding(sharded_modules(model))
            raise
        finally:
            for module, syncs in before:
                module.require_forward_param_sync = syncs


def reset_sharding(modules: Iterable[FSDPModule]) -> None:
    """Let FSDP2 begin anew after a pass that raised, with every parameter sharded."""
    for module in modules:
        if not hasattr(module, "reset_iter_state"):  # an older torch
            module.reshard()
        elif module._get_fsdp_state()._is_root:
            module.reset_iter_state()


def is_replicated_elsewhere(model: nn.Module, parameters: Set[int]) -> bool:
    """Return whether DDP holds one of these parameters, given by identity, but is no part of the model.

    Nothing leads from a parameter to its DDP, so all objects of the process are searched.
    """
    inside = set(map(id, model.modules()))
    wrappers = (o for o in gc.get_objects() if issubclass(type(o), DistributedDataParallel))
    outside = (wrapper for wrapper in wrappers if id(wrapper) not in inside)
    return any(id(p) in parameters for wrapper in outside for p in wrapper.parameters())


def is_sharded(model: nn.Module) -> bool:
    """Return whether some parameter is a DTensor."""
    return any(is_dtensor(parameter) for parameter in model.parameters())


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a DTensor from all ranks, or return the tensor itself. Every rank must call this."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


@dataclass(frozen=True)
class Shard:
    """A copy on the host of this rank's part of a DTensor, which can be made a DTensor again."""

    part: Tensor
    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: DTensor, copy_to_host: Callable[[Tensor], Tensor]) -> Shard:
        part = copy_to_host(tensor.to_local())
        return cls(part, tensor.device_mesh, tensor.placements, tensor.shape, tensor.stride())

    def to_dtensor(self) -> Tensor:
        """Copy the part to the device, as a DTensor."""
        return sys.modules["torch.distributed.tensor"].DTensor.from_local(  # type: ignore[no-any-return]
            self.part.to(self.mesh.device_type, copy=True),
            self.mesh,
            self.placements,
            run_check=False,
            shape=self.shape,
            stride=self.stride,
        )


class GradientSync:
    """Controls all modules of a model that reduce gradients over ranks."""

    def __init__(self, model: nn.Module) -> None:
        self._replicated = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
        self._sharded = sharded_modules(model)

    @property
    def replicates(self) -> bool:
        """True if DDP averages gradients."""
        return bool(self._replicated)

    @property
    def is_joining(self) -> bool:
        """True inside ``with model.join():``, where ranks that run out of data shadow the others."""
        return any(module._join_config.enable for module in self._replicated)

    def defer_gradient_sync(self, defer: bool) -> AbstractContextManager[Any]:
        """Keep the gradients of a forward and backward pass on each rank, and reduce them with later ones."""
        for sharded in self._sharded:
            sharded.set_requires_gradient_sync(not defer, recurse=False)
        held = ExitStack()
        for module in self._replicated if defer else ():
            held.enter_context(module.no_sync())
        return held

    def reset(self) -> None:
        """Let DDP begin anew after a step that was abandoned while it expected gradients.

        Otherwise later forward passes raise, or gradients that are held back are reduced too early. All ranks
        must do this together: a later forward pass agrees on new buckets.
        """
        for module in self._replicated:
            module._has_rebuilt_buckets = False
            module.reducer._reset_state()

    def drop_gradients(self) -> None:
        """Drop the gradients of an abandoned step that FSDP2 keeps where no optimizer sees them."""
        reset_sharding(self._sharded)
        for parameter in self._fsdp_parameters():
            if "unsharded_accumulated_grad" in vars(parameter):  # since torch 2.15 a property
                parameter.unsharded_accumulated_grad = None
            if hasattr(parameter, "_unsharded_param"):
                parameter._unsharded_param.grad = None

    @property
    def shards(self) -> bool:
        """True if FSDP2 shards modules."""
        return bool(self._sharded)

    @property
    def holds_gradients(self) -> bool:
        """True if FSDP2 keeps gradients of micro-batches that ranks have not reduced, and no optimizer sees."""
        return any(
            getattr(parameter, "unsharded_accumulated_grad", None) is not None
            or getattr(getattr(parameter, "_unsharded_param", None), "grad", None) is not None
            for parameter in self._fsdp_parameters()
        )

    def _fsdp_parameters(self) -> Iterator[Any]:
        groups = (group for sharded in self._sharded for group in fsdp_groups(sharded))
        return (parameter for group in groups for parameter in group.fsdp_params)


def fsdp_groups(module: FSDPModule) -> list[Any]:
    """Return FSDP2's groups of the parameters that were sharded with a module; torch's own objects."""
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # since torch 2.13; before, one or none
    return list(filter(None, [state._fsdp_param_group] if groups is None else groups))


def disable_fsdp_mixed_precision(model: nn.Module) -> Callable[[], None]:
    """Let FSDP2 gather and reduce parameters in their own dtype; return a function that undoes this."""
    modules = sharded_modules(model)
    before = [held for module in modules for held in _policies(module)]

    def assign(policies: Iterable[MixedPrecisionPolicy]) -> None:
        for module in modules:
            module.reshard()
        for (holder, name, _), policy in zip(before, policies, strict=True):
            setattr(holder, name, policy)
        for module in modules:
            _apply_policies(module)

    assign(_without_mixed_precision(policy) for _, _, policy in before)
    return lambda: assign(policy for _, _, policy in before)


def _policies(module: FSDPModule) -> Iterator[tuple[Any, str, MixedPrecisionPolicy]]:
    """Yield the objects that hold the policy: state, groups and parameters, which of them depends on torch."""
    state: Any = module._get_fsdp_state()
    yield state, "_mp_policy", state._mp_policy
    for group in fsdp_groups(module):
        for holder in (group, *group.fsdp_params):
            if hasattr(holder, "mp_policy"):
                yield holder, "mp_policy", holder.mp_policy


def _without_mixed_precision(policy: MixedPrecisionPolicy) -> MixedPrecisionPolicy:
    # A requested FP32 output dtype stays; a half one would overflow again, like the original step.
    output = policy.output_dtype if policy.output_dtype in _WIDE else None
    return replace(policy, param_dtype=None, reduce_dtype=None, output_dtype=output)


def _apply_policies(module: FSDPModule) -> None:
    for group in fsdp_groups(module):
        group._init_mp_dtypes()
        for parameter in group.fsdp_params:
            # Buffers for the gathered parameter have the old dtype; FSDP2 allocates missing ones again.
            parameter.all_gather_outputs = []
            vars(parameter).pop("_unsharded_param", None)
