"""Recognize the settings of Lightning and transformers in a YAML mapping.

The keys show it, and in a known project also the code: a project with a trainer of its own may use the same
keys with another meaning.
"""

from __future__ import annotations

from halfguard.lint.yaml_file import YamlEntry, YamlFile, YamlMapping

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


def find_lightning_fp16(file: YamlFile, mapping: YamlMapping) -> YamlEntry | None:
    """Return the entry that asks Lightning for FP16 mixed precision."""
    if file.project.known and not file.project.lightning:
        return None
    entry = mapping.get("precision")
    return entry if entry is not None and entry.value in {"16-mixed", "16"} else None


def is_lightning_trainer(file: YamlFile, mapping: YamlMapping) -> bool:
    """Return whether a mapping holds settings of a Lightning ``Trainer``."""
    if file.project.known and not file.project.lightning:
        return False
    target = mapping.get("_target_")
    named = target is not None and (target.value or "").endswith("Trainer")
    return named or bool(_TRAINER & mapping.keys())


def is_training_arguments(file: YamlFile, mapping: YamlMapping) -> bool:
    """Return whether a mapping holds transformers' ``TrainingArguments``."""
    if file.project.known and not file.project.transformers:
        return False
    return len(_ARGUMENTS & mapping.keys()) >= 2


def find_fp16(file: YamlFile, mapping: YamlMapping) -> YamlEntry | None:
    """Return the entry that turns on FP16: transformers' ``fp16``, or ``use_amp`` of hand-written loops."""
    entry = mapping.get("fp16")
    if is_on(entry) and (is_training_arguments(file, mapping) or not file.project.known):
        return entry
    for name in ("use_amp", "use_mixed_precision"):
        if is_on(mapping.get(name)):
            return mapping[name]
    return None


def is_on(entry: YamlEntry | None) -> bool:
    """Return whether an entry exists and is true."""
    return entry is not None and entry.boolean is True
