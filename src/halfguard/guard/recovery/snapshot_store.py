"""What a snapshot holds, what is asked of a place to keep it in, and the simplest such place: memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from torch import Tensor

from halfguard.dist.wrapping import Shard, is_spread


@dataclass(frozen=True)
class State:
    """A state to return to: what all ranks share, and what each has for itself."""

    shared: dict[str, Any]
    own: dict[str, Any] = field(default_factory=dict)


class Store(Protocol):
    """Keeps states; what ``save`` returns is the handle of one, and ``good`` has them newest first."""

    keeps: ClassVar[int]  # good states; all but the newest are spares, should that one be damaged

    def save(self, step: int, state: State) -> Any: ...
    def mark_good(self, held: Any) -> bool: ...
    def load(self, held: Any) -> State: ...
    def forget(self, held: Any) -> None: ...
    def set_aside(self, held: Any) -> None: ...
    def good(self) -> list[tuple[int, Any]]: ...


class Memory:
    """Copies on the host; gone when the run ends."""

    keeps: ClassVar[int] = 1

    def save(self, step: int, state: State) -> State:  # noqa: ARG002
        """Copy a state."""
        return State(to_host(state.shared), to_host(state.own))

    def mark_good(self, held: State) -> bool:  # noqa: ARG002
        """A copy is as good as it was."""
        return True

    def load(self, held: State) -> State:
        """Another copy, so that what is loaded does not share memory with what is kept."""
        return State(from_host(held.shared), from_host(held.own))

    def forget(self, held: State) -> None:
        """Nothing holds it any longer than the caller does."""

    def set_aside(self, held: State) -> None:
        """What lies in memory is not damaged."""

    def good(self) -> list[tuple[int, State]]:
        """No earlier run left anything."""
        return []


def to_host(state: Any) -> Any:
    """A copy of a state whose tensors lie on the host and share nothing with the original."""
    if isinstance(state, Tensor):
        if is_spread(state):
            return Shard.of(state)
        return state.detach().to("cpu", copy=True)
    return _mapped(state, to_host)


def from_host(state: Any) -> Any:
    """Another such copy, with DTensors where they were."""
    if isinstance(state, Shard):
        return state.spread()
    if isinstance(state, Tensor):
        return state.clone()
    return _mapped(state, from_host)


def _mapped(state: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(state, Mapping):
        return {key: function(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(function(value) for value in state)
    return state
