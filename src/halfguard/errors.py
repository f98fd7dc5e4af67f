"""Every exception that halfguard raises on purpose.

::

    HalfguardError
    ├── UsageError (ValueError)             the caller's mistake: exit code 2 on the command line
    │   └── ConfigError                     an invalid configuration
    ├── MissingExtraError (ImportError)     an optional dependency is not installed
    ├── RecordError (ValueError)            a file is not a valid record of the expected kind
    ├── PoisonedStateError                  a state was not saved: values in it are not finite
    ├── NoPlanError                         no set of FP32 islands makes the model follow FP32
    └── TrainingHaltedError                 the guard stopped a run that could not continue

A message answers four questions in this order: what happened, where, why, and what to do next.
``HalfguardError`` takes the last answer separately, as ``cure``, so that a terminal can highlight it.
"""

from __future__ import annotations


class HalfguardError(Exception):
    """Base class of all halfguard exceptions; ``cure`` says what to do next."""

    def __init__(self, message: str, *, cure: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.cure = cure

    def __str__(self) -> str:
        return f"{self.message}\n{self.cure}" if self.cure else self.message


class UsageError(HalfguardError, ValueError):
    """A mistake of the caller, or a request that cannot be met; nothing was changed."""


class ConfigError(UsageError):
    """A configuration names an unknown key or a value outside its range."""


class MissingExtraError(HalfguardError, ImportError):
    """A name was used that needs an optional dependency, which is not installed."""

    def __init__(self, name: str, extra: str) -> None:
        super().__init__(
            f"{name} needs the optional dependency '{extra}', which is not installed here.",
            cure=f"Run: pip install 'halfguard[{extra}]'",
        )
        self.extra = extra


class RecordError(HalfguardError, ValueError):
    """A record on disk has another kind or an unknown version, or is damaged."""


class PoisonedStateError(HalfguardError):
    """A checkpoint was refused because values in it are NaN, infinite, or too large for its format.

    ``names`` has the names of all bad tensors and numbers.
    """

    def __init__(self, message: str, *, names: tuple[str, ...] = (), cure: str = "") -> None:
        super().__init__(message, cure=cure)
        self.names = names


class NoPlanError(HalfguardError):
    """The search for FP32 islands found none that help: exit code 1 on the command line."""


class TrainingHaltedError(HalfguardError):
    """A run cannot continue; the message names epoch, batch, cause and parameters."""
