"""Load a stored state into live objects: containers get their types back, buffers their values."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from halfguard.step.nested import map_leaves


def open_schedulers(state: Any) -> Any:
    """Replace schedulers inside a state by their own states: a scheduler may hold another as an attribute."""
    # Before torch 2.10, SWALR's state has a function, which never changes, and which no store can keep.
    if isinstance(state, dict) and "anneal_func" in state:
        state = {key: value for key, value in state.items() if key != "anneal_func"}
    return map_leaves(
        state, lambda x: open_schedulers(x.state_dict()) if isinstance(x, LRScheduler) else x
    )


def restore_types(kept: Any, live: Any) -> Any:
    """Return a stored state with the container types of the live one.

    A store keeps dicts, lists and tuples. But MultiStepLR counts with a Counter, and a module's extra state
    may be a named tuple. Containers without a live counterpart keep the type that they have.
    """
    if isinstance(kept, dict) and isinstance(live, LRScheduler):
        live.load_state_dict(restore_types(kept, live.state_dict()))
        return live
    if isinstance(kept, dict):
        known = live if isinstance(live, Mapping) else {}
        items = {key: restore_types(item, known.get(key)) for key, item in kept.items()}
        if type(known) is dict or not isinstance(known, MutableMapping):
            return items
        typed = copy.copy(known)  # with what else it holds, such as the factory of a defaultdict
        typed.clear()
        typed.update(items)
        return typed
    if isinstance(kept, list | tuple):
        ordered = live if isinstance(live, list | tuple) else ()
        parts = [
            restore_types(item, ordered[index] if index < len(ordered) else None)
            for index, item in enumerate(kept)
        ]
        if isinstance(kept, list):
            return parts
        if isinstance(live, tuple) and len(live) == len(kept):
            return type(live)(*parts) if hasattr(live, "_fields") else type(live)(parts)
        return type(kept)(*parts) if hasattr(kept, "_fields") else tuple(parts)
    if isinstance(kept, Tensor) and isinstance(live, Tensor) and not kept.dim():
        return kept.to(
            live.device
        )  # a learning rate: an optimizer takes the tensor that it is given
    return kept


@torch.no_grad()
def restore_buffers(model: nn.Module, kept: Mapping[str, Tensor]) -> None:
    """Restore buffers that are not part of the model's ``state_dict``.

    A buffer whose shape or dtype has changed is a cache that was built again. It stays, because attributes
    that describe it, such as its length, are not rolled back.
    """
    live = dict(model.named_buffers())
    for name, value in kept.items():
        buffer = live.get(name)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            continue
        path, _, last = name.rpartition(".")
        try:
            if buffer.layout is not torch.strided or not torch.equal(
                buffer, value.to(buffer.device)
            ):
                buffer.copy_(value)
        except RuntimeError:  # not writable in place: expanded, or made in inference mode
            setattr(model.get_submodule(path), last, value.to(buffer.device))
