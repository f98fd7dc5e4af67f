"""The path of the module that is running, tracked by a pair of hooks on each module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from halfguard.step.parameters import COMPILED, without_wrappers


class ModuleStack:
    """The modules whose forward is running, outermost first."""

    def __init__(self) -> None:
        self._paths: list[str] = []

    @property
    def current(self) -> str | None:
        """The path of the innermost module: empty for the model itself, None outside of it."""
        return self._paths[-1] if self._paths else None

    @contextmanager
    def tracking(self, model: nn.Module, *, compiled: bool = True) -> Iterator[None]:
        """Track the stack while the block runs; the hooks are always removed.

        Without ``compiled``, modules inside a compiled one have no hooks, so that its code stays valid.
        """
        handles: list[Any] = []
        try:
            for path, module in model.named_modules() if compiled else visible_modules(model):
                handles.append(
                    module.register_forward_pre_hook(
                        self._enter(without_wrappers(path, (COMPILED,)))
                    )
                )
                # always_call: also for a module that raises.
                handles.append(module.register_forward_hook(self._leave, always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._paths.clear()

    def _enter(self, path: str) -> Callable[[nn.Module, Any], None]:
        def enter(_module: nn.Module, _args: Any) -> None:
            if not torch.compiler.is_compiling():
                self._paths.append(path)

        return enter

    def _leave(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        if self._paths and not torch.compiler.is_compiling():
            self._paths.pop()


def visible_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that run as Python; a module compiled by ``torch.compile`` is one of them."""
    hidden: tuple[str, ...] = ()
    for path, module in model.named_modules():
        if hidden and path.startswith(hidden):
            continue
        if hasattr(module, COMPILED):
            hidden += (f"{path}.{COMPILED}" if path else COMPILED,)
        yield path, module
