"""What kind of settings a YAML mapping holds, told by its keys."""

from __future__ import annotations

from halfguard.lint.yamlfile import Entry, Mapping

_TRAINER = {
    "accelerator", "accumulate_grad_batches", "benchmark", "check_val_every_n_epoch", "deterministic",
    "devices", "gradient_clip_algorithm", "gradient_clip_val", "limit_train_batches",
    "log_every_n_steps", "max_epochs", "max_steps", "min_epochs", "num_nodes", "strategy",
    "val_check_interval",
}  # fmt: skip
_ARGUMENTS = {
    "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "output_dir",
    "logging_steps", "save_steps", "warmup_ratio", "lr_scheduler_type",
}  # fmt: skip


def lightning_half(mapping: Mapping) -> Entry | None:
    """The entry that asks Lightning for FP16 with a loss scale."""
    entry = mapping.get("precision")
    return entry if entry is not None and entry.value in {"16-mixed", "16"} else None


def is_trainer(mapping: Mapping) -> bool:
    """Whether a mapping holds settings of a Lightning trainer."""
    target = mapping.get("_target_")
    named = target is not None and (target.value or "").endswith("Trainer")
    return named or bool(_TRAINER & mapping.keys())


def is_arguments(mapping: Mapping) -> bool:
    """Whether a mapping holds transformers' training arguments."""
    return len(_ARGUMENTS & mapping.keys()) >= 2


def is_on(entry: Entry | None) -> bool:
    """Whether an entry is there and true."""
    return entry is not None and entry.truth is True
