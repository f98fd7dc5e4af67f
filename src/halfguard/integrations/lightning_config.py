"""The configuration of a guard as Lightning's mixed-precision plugins understand it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from halfguard.errors import UsageError
from halfguard.guard.config import GuardConfig

logger = logging.getLogger("halfguard")

# FP32 is mixed precision without autocast: Lightning's plugins have no name for it.
LIGHTNING_NAMES: dict[str, Literal["16-mixed", "bf16-mixed"]] = {
    "fp16-mixed": "16-mixed",
    "bf16-mixed": "bf16-mixed",
    "fp32": "bf16-mixed",
}


def load_mixed(config: GuardConfig | Mapping[str, Any] | str | Path) -> GuardConfig:
    """Load a configuration whose weights are FP32, as the plugins of mixed precision need them."""
    loaded = GuardConfig.load(config)
    if loaded.precision not in LIGHTNING_NAMES:
        raise UsageError(
            f"precision={loaded.precision!r} keeps 16-bit weights, which these plugins do not support.",
            cure="Use 'fp16-mixed' or 'bf16-mixed'; halfguard.Guard trains FP16 weights in a plain loop.",
        )
    return loaded


def warn_of_unused(config: GuardConfig, clip_val: float | None, accumulate: int) -> None:
    """Warn if a configuration clips or accumulates and the Trainer, which does both, was not told to."""
    wanted = []
    if config.clip is not None and clip_val is None:
        wanted.append(f"gradient_clip_val={config.clip.max_norm:g}")
    if config.accumulate > 1 and accumulate == 1:
        wanted.append(f"accumulate_grad_batches={config.accumulate}")
    if wanted:
        text = ", ".join(wanted)
        logger.warning(
            "the configuration sets %s; pass this to the Trainer, which applies it", text
        )
