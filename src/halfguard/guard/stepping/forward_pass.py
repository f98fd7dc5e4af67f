"""Contexts around the parts of a step: what raises inside them leaves no trace of the step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator
from types import TracebackType
from typing import Any


class Transaction:
    """Abandons the step if anything raises inside the block."""

    def __init__(self, abandon: Callable[[BaseException], None]) -> None:
        self._abandon = abandon

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)
        if error is not None:
            self._abandon(error)
