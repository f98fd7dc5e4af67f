"""``fp32_island(module)``: make a module compute in FP32 inside a 16-bit model.

Inside, autocast is off for every device, including CUDA's emulated rules, and 16-bit inputs are cast to
float32, also in nested structures. Under autocast, outputs stay in float32: rounding them to half could
overflow at once, and autocast lowers them for the next matrix product. In a model that is half by itself
nothing lowers them, and the next half layer would raise; so there the island's outputs get the dtype of its
inputs. Then an output beyond half is infinite: make the modules that use it part of the island.

Only the module's ``forward`` is wrapped. Hooks, parameters and ``state_dict`` do not change, a checkpointed
block is still an island when it is recomputed, and a deep copy is an island of its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import nn

from halfguard.dist.wrapping import is_sharded
from halfguard.errors import UsageError
from halfguard.precision.modes import HALF_DTYPES, full_precision
from halfguard.precision.rescaled import SETTING, can_be_rescaled, run_as_before, run_rescaled
from halfguard.precision.upcast import cast_floats, cast_to_fp32, replace_data
from halfguard.records.plan import Island, PrecisionPlan
from halfguard.step.nested import tensors_in
from halfguard.step.parameters import without_wrappers


def make_islands(model: nn.Module, plan: PrecisionPlan) -> list[str]:
    """Make the modules of ``plan`` islands, and return their paths; lines are the caller's business."""
    found = _find_modules(model, plan.islands)
    for module, island in found.values():
        if island.kind == "rescaled":
            make_rescaled(module)
        else:
            fp32_island(module)
    return list(found)


def _find_modules(
    model: nn.Module, islands: Sequence[Island]
) -> dict[str, tuple[nn.Module, Island]]:
    # remove_duplicate=False: a shared module has several paths, and all of them are valid.
    modules = dict(model.named_modules(remove_duplicate=False))
    bare = {without_wrappers(path): path for path in reversed(modules)}
    found: dict[str, tuple[nn.Module, Island]] = {}
    unknown = []
    for island in sorted(islands, key=lambda one: one.kind == "fp32"):  # FP32 wins over rescaling
        wrapped = (bare[name] for name in island.members(bare))
        names = dict.fromkeys((*island.members(modules), *wrapped))
        found |= {name: (modules[name], island) for name in names}
        unknown += [] if names else [island.module]
    if unknown:
        raise UsageError(
            f"The plan names {_with_hints(unknown, modules)}, but {type(model).__name__} has no such "
            "module. Nothing was changed.",
            cure="If the plan is for another model, or a module was renamed, create a new plan: "
            "halfguard plan ENTRY -o plan.yaml",
        )
    for module, island in found.values():
        if island.kind == "rescaled" and not can_be_rescaled(module):
            raise UsageError(
                f"The plan rescales {island.module}, a {type(module).__name__}. Nothing was changed.",
                cure=(
                    "Only a torch.nn.Linear can be rescaled. To run the module in FP32, remove "
                    "'kind: rescaled'."
                ),
            )
    return found


def _with_hints(unknown: list[str], modules: dict[str, nn.Module]) -> str:
    parts = []
    for name in unknown:
        close = difflib.get_close_matches(name, [path for path in modules if path], n=2, cutoff=0.5)
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        parts.append(f"{name!r}{hint}")
    return ", ".join(parts)


_FP32 = (torch.float32,)

Module = TypeVar("Module", bound=nn.Module)


def fp32_island(module: Module) -> Module:
    """Make ``module`` run in FP32, in place, and return it. A second call has no effect.

    The 16-bit parameters and buffers of the module become FP32. If ``model.half()`` converts them later, they
    become FP32 again at the next call. Parameters remain the same objects, so an existing optimizer can still
    update them.

    Under autocast, the outputs are FP32. In a model with 16-bit weights and without autocast, the outputs
    have the dtype of the 16-bit inputs. A module without such inputs, for example an embedding, returns
    FP32.
    """
    return make_island(module, in_half_model=_is_half_by_itself(module))


def make_island(module: Module, *, in_half_model: bool) -> Module:
    """Make an island of ``module``; ``in_half_model`` says whether its neighbours need half outputs."""
    if not is_island(module):
        _convert_to_fp32(module)
        run = _run_gathered_in_fp32 if is_sharded(module) else _run_in_fp32
        _replace_forward(module, run, in_half_model)
    return module


def make_rescaled(module: nn.Module) -> nn.Module:
    """Make a linear layer multiply in half and return FP32 (``rescaled``); its weights do not change."""
    if not is_island(module):
        _replace_forward(module, run_rescaled)
    return module


def remove_island(module: Module) -> Module:
    """Undo ``fp32_island`` or ``make_rescaled``, except for the dtype of parameters; return the module."""
    if is_island(module):
        del module.forward, module._island
        original = vars(module).pop(SETTING)[-1]
        if original is not None:
            module.forward = original
    return module


def is_island(module: nn.Module) -> bool:
    """Return whether this module itself is an island, of either kind."""
    return SETTING in vars(module)


def is_fp32_island(module: nn.Module) -> bool:
    """Return whether this module itself runs in FP32."""
    return is_island(module) and vars(module)["_island"].run is not run_rescaled


def _replace_forward(module: nn.Module, run: Callable[..., Any], *setting: Any) -> None:
    own: Any = vars(module).pop("forward", None)
    if getattr(own, "__func__", None) is type(module).forward:
        own = None  # nobody has replaced it
    _forward_by(module, run)
    setattr(module, SETTING, (_accelerator_type(), *setting, own))


def _forward_by(module: nn.Module, run: Callable[..., Any]) -> _Island:
    """Let ``run`` be the module's forward: a method, so that equal blocks share what is compiled for one."""
    island = vars(module)["_island"] = _Island(module, run)
    vars(module)["forward"] = MethodType(run, module)
    return island


class _Island:
    """Makes the island again where its module is unpickled: a method is looked up in its module there."""

    def __init__(self, module: nn.Module, run: Callable[..., Any]) -> None:
        self._module, self.run = module, run

    def __reduce__(self) -> tuple[Any, ...]:
        return _forward_by, (self._module, self.run)


def _is_half_by_itself(module: nn.Module) -> bool:
    """Return whether all weights are half, or were so before a module inside became an island."""
    inner = [m for m in module.modules() if m is not module and is_fp32_island(m)]
    widened = {id(p) for m in inner for p in m.parameters()}
    own = [p for p in module.parameters() if id(p) not in widened]
    return all(p.dtype in HALF_DTYPES for p in own) and all(vars(m)[SETTING][1] for m in inner)


def _accelerator_type() -> str:
    # Asked when an island is made: other accelerators than CUDA may register after this module was imported.
    device = torch.accelerator.current_accelerator()  # does not start a driver
    return "cuda" if device is None else device.type  # CUDA's rules may be emulated


def _run_in_fp32(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    weight = next(self.parameters(), None)
    if weight is not None and weight.dtype in HALF_DTYPES:
        _widen_again(self)
    accelerator, in_half_model, _ = self._island_setting
    lowers = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled(accelerator)
    given = _half_dtype((args, kwargs)) if in_half_model and not lowers else None
    # Two plain contexts, not a loop over devices: torch.compile traces them without a graph break.
    with full_precision("cpu"), full_precision(accelerator):
        out = run_as_before(self, *[cast_to_fp32(value) for value in args], **cast_to_fp32(kwargs))
    return out if given is None else cast_floats(out, _FP32, given)


def _run_gathered_in_fp32(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Run an island of a module whose weights FSDP2 gathers in half, for it and its neighbours together."""
    half = [
        (owner, name, weight)
        for owner in self.modules()
        for name, weight in owner._parameters.items()
        if weight is not None and weight.dtype in HALF_DTYPES
    ]
    try:
        for owner, name, weight in half:
            owner._parameters[name] = weight.float()
        return _run_in_fp32(self, *args, **kwargs)
    finally:
        for owner, name, weight in half:
            owner._parameters[name] = weight


for _run in (_run_in_fp32, _run_gathered_in_fp32, run_rescaled):
    _run.__name__ = "forward"  # pickle looks a method up in its module by this name


def _half_dtype(value: Any) -> torch.dtype | None:
    """Return the dtype of the first 16-bit tensor in a nested structure."""
    return next((t.dtype for t in tensors_in(value) if t.dtype in HALF_DTYPES), None)


def _widen_again(module: nn.Module) -> None:
    """Restore FP32 weights after ``model.half()``, and return half as the neighbours now do."""
    accelerator, _, original = vars(module)[SETTING]
    _convert_to_fp32(module)
    setattr(module, SETTING, (accelerator, True, original))


@torch.no_grad()
def _convert_to_fp32(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.dtype in HALF_DTYPES:
            replace_data(parameter, parameter.data.float())
    for owner in module.modules():
        for name, buffer in owner.named_buffers(recurse=False):
            if buffer.dtype in HALF_DTYPES:
                owner._buffers[name] = buffer.float()
