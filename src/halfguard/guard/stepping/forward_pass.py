"""Contexts around the parts of a step: what raises inside them leaves no trace of the step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator
from typing import Any

from torch import nn

from halfguard.precision.modes import without_autocast


class FullPrecisionForward:
    """Switches autocast off while a model's forward pass runs, until it is removed.

    A framework may have wrapped ``forward`` itself; hooks run before and after that. A loss that is computed
    outside the forward pass stays in the framework's autocast.
    """

    def __init__(self, model: nn.Module, device_type: str) -> None:
        self._device_type = device_type
        self._entered: list[AbstractContextManager[None]] = []
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
        context = without_autocast(self._device_type)
        context.__enter__()
        self._entered.append(context)

    def _leave(self, *_: Any) -> None:
        self._entered.pop().__exit__(None, None, None)


class Transaction:
    """Abandons the step if anything raises inside the block."""

    def __init__(self, abandon: Callable[[BaseException], None]) -> None:
        self._abandon = abandon

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self._abandon(error)


class ForwardPass(ContextDecorator):
    """Begins a step and switches autocast on, each time it is entered.

    Many loops make the context once and enter it for every batch, so making one must have no effect.
    """

    def __init__(
        self,
        begin: Callable[[], AbstractContextManager[Any]],
        abandon: Callable[[BaseException], None],
    ) -> None:
        self._begin = begin
        self._abandon = abandon
        self._entered: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        context = self._begin()
        context.__enter__()
        self._entered.append(context)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._entered.pop().__exit__(kind, error, trace)
        if error is not None:
            self._abandon(error)
