"""Which module is running: the path of the innermost one, kept by a pair of hooks on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class ModuleStack:
    """The modules whose forward is on the way, outermost first."""

    def __init__(self) -> None:
        self._paths: list[str] = []

    @property
    def current(self) -> str | None:
        """The innermost one: empty for the model itself, None outside of it."""
        return self._paths[-1] if self._paths else None

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Keep the stack while the block runs; the hooks go whatever happens in it."""
        handles: list[Any] = []
        try:
            for path, module in model.named_modules():
                handles.append(module.register_forward_pre_hook(self._enter(_readable(path))))
                # always_call: a module that raises is left all the same.
                handles.append(module.register_forward_hook(self._leave, always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._paths.clear()

    def _enter(self, path: str) -> Callable[[nn.Module, Any], None]:
        return lambda _module, _args: self._paths.append(path)

    def _leave(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        if self._paths:
            self._paths.pop()


def _readable(path: str) -> str:
    """The path without the wrappers of ``torch.compile``, which nobody has written down."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod")
