"""The exceptions that halfguard raises.

::

    HalfguardError
    ├── UsageError (ValueError)             the caller's mistake: exit code 2 on the command line
    │   └── ConfigError                     an invalid configuration
    ├── MissingExtraError (ImportError)     an optional dependency is not installed
    ├── RecordError (ValueError)            a file is not a valid record of the expected kind
    ├── PoisonedStateError                  a state was not saved: values in it are not finite
    ├── NoPlanError                         no set of FP32 islands makes the model follow FP32
    └── TrainingHaltedError                 the guard stopped a run that could not continue

A message says what happened, where, why, and what to do next. ``HalfguardError`` stores the last part
separately as ``cure``, so that a terminal can highlight it.
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
    """The caller made a mistake, or a request cannot be fulfilled. Nothing was changed."""


class ConfigError(UsageError):
    """A configuration names an unknown key or a value outside its range."""


class MissingExtraError(HalfguardError, ImportError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, name: str, extra: str) -> None:
        super().__init__(
            f"{name} needs the optional dependency '{extra}', which is not installed here.",
            cure=f"Run: pip install 'halfguard[{extra}]'",
        )
        self.extra = extra


class RecordError(HalfguardError, ValueError):
    """A file is damaged, is not a record of the expected kind, or has an unknown version."""


class PoisonedStateError(HalfguardError):
    """A checkpoint was not saved because it contains values that are NaN, Inf or too large for its format.

    ``names`` lists the affected tensors and numbers.
    """

    def __init__(self, message: str, *, names: tuple[str, ...] = (), cure: str = "") -> None:
        super().__init__(message, cure=cure)
        self.names = names


class NoPlanError(HalfguardError):
    """No set of FP32 islands helps. On the command line, the exit code is 1."""


class TrainingHaltedError(HalfguardError):
    """A run cannot continue. The message names the epoch, the batch, the cause and the parameters."""
