"""Names as the user wrote them: without the levels that wrappers put into a module's path."""

from __future__ import annotations

from collections.abc import Collection

COMPILED = "_orig_mod"  # torch.compile
WRAPPERS = ("module", COMPILED, "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def without_wrappers(path: str, wrappers: Collection[str] = WRAPPERS) -> str:
    """Return a dotted path without the parts that DDP, FSDP, checkpointing and torch.compile add."""
    return ".".join(part for part in path.split(".") if part not in wrappers)
