"""FP32 in a model whose framework has put autocast around, or into, its forward pass."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch import nn

from halfguard.precision.modes import full_precision, without_autocast


class FullPrecisionForward:
    """Switches autocast off while a model's forward pass runs, until it is removed.

    A framework may have wrapped ``forward`` itself; hooks run before and after that. A loss that is computed
    outside the forward pass stays in the framework's autocast.
    """

    def __init__(self, model: nn.Module, device_type: str) -> None:
        self._device_type = device_type
        self._entered: list[ExitStack] = []
        # A framework may train several models; nobody calls the list that holds them.
        models = list(model) if isinstance(model, nn.ModuleList) else [model]
        self._hooks = [
            hook
            for one in models
            for hook in (
                one.register_forward_pre_hook(self._enter, prepend=True),
                one.register_forward_hook(self._leave, always_call=True),
            )
        ]

    def remove(self) -> None:
        """Let the framework decide again."""
        for hook in self._hooks:
            hook.remove()

    def _enter(self, *_: Any) -> None:
        stack = ExitStack()
        stack.enter_context(full_precision(self._device_type))
        stack.enter_context(without_autocast())
        self._entered.append(stack)

    def _leave(self, *_: Any) -> None:
        self._entered.pop().close()
