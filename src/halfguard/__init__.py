"""halfguard: train in 16 bits, and prove that it is as good as 32.

The public names, nothing else. A name is imported when it is first used, so that ``import halfguard``
costs nothing and works where torch is not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfguard import ops
    from halfguard.numerics import formats

__version__ = "0.1.0"

# name -> (module, attribute or None for the module itself, the extra it needs or None)
_NAMES: dict[str, tuple[str, str | None, str | None]] = {
    "formats": ("halfguard.numerics.formats", None, None),
    "ops": ("halfguard.ops", None, "torch"),
}

__all__ = ["__version__", "formats", "ops"]


def __getattr__(name: str) -> object:
    if name not in _NAMES:
        raise AttributeError(f"module 'halfguard' has no attribute {name!r}")
    module, attribute, extra = _NAMES[name]
    try:
        found: object = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if extra is None or (error.name or "").split(".")[0] == "halfguard":
            raise
        from halfguard.errors import MissingExtraError  # noqa: PLC0415

        raise MissingExtraError(f"halfguard.{name}", extra) from error
    if attribute is not None:
        found = getattr(found, attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
