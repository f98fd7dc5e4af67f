"""Settings of frameworks with which a run writes nothing, shows nothing and uses no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LIGHTNING: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def transformers(folder: Path | str) -> dict[str, Any]:
    """Return what ``TrainingArguments`` needs for such a run in a folder."""
    return {
        "output_dir": str(folder),
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
