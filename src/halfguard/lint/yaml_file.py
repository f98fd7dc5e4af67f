"""The mappings of a YAML file, with the position of every key, and the settings of trainers among them.

The file is composed into nodes, which carry lines and columns. No Python object is constructed from it, so
no tag in a file can run code.

Settings of Lightning and transformers are recognized by their keys, and in a known project also by the code:
a project with a trainer of its own may use the same keys with another meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from halfguard.lint.match import Match, Span
from halfguard.lint.project import UNKNOWN, Project
from halfguard.lint.source import Source

if TYPE_CHECKING:
    import yaml


_MAX_NODES = 200_000  # aliases can expand a small file into a very large one


class InvalidYamlError(Exception):
    """The text is not YAML: a template, or another dialect."""


@dataclass(frozen=True)
class YamlEntry:
    """One key of a mapping; ``value`` is None for null, lists and mappings."""

    key: str
    value: str | None
    is_null: bool
    span: Span

    @property
    def number(self) -> float | None:
        """The value as a number, or None if it is not one."""
        try:
            return float(self.value or "")
        except ValueError:
            return None

    @property
    def boolean(self) -> bool | None:
        """The value as a boolean, or None if it is not one."""
        values = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
        return values.get((self.value or "").lower())

    def match(self, message: str) -> Match:
        return Match(self.span, message)


YamlMapping = dict[str, YamlEntry]


class YamlFile:
    """Every mapping of a YAML file, at any depth, in all its documents."""

    def __init__(self, source: Source, project: Project = UNKNOWN) -> None:
        self.source = source
        self.project = project

    @cached_property
    def mappings(self) -> list[YamlMapping]:
        """Mappings, outermost first."""
        return list(self._mappings())

    def _mappings(self) -> Iterator[YamlMapping]:
        import yaml  # noqa: PLC0415

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            composed = list(yaml.compose_all(self.source.text, Loader=loader))
        except yaml.YAMLError as error:
            raise InvalidYamlError(str(error)) from error
        stack = [node for node in composed if node][::-1]
        seen: set[int] = set()
        while stack and len(seen) < _MAX_NODES:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, yaml.MappingNode):
                yield (
                    {entry.key: entry for entry in map(self._entry, *zip(*node.value, strict=True))}
                    if node.value
                    else {}
                )
                stack.extend(value for _, value in reversed(node.value))
            elif isinstance(node, yaml.SequenceNode):
                stack.extend(reversed(node.value))

    def _entry(self, name: yaml.Node, value: yaml.Node) -> YamlEntry:
        import yaml  # noqa: PLC0415

        scalar = isinstance(value, yaml.ScalarNode)
        begin = self._position(name.start_mark)
        end = self._position(value.end_mark if scalar else name.end_mark)
        is_null = scalar and value.tag == "tag:yaml.org,2002:null"
        return YamlEntry(
            key=str(name.value) if isinstance(name, yaml.ScalarNode) else "",
            value=str(value.value) if scalar and not is_null else None,
            is_null=is_null,
            span=Span(*begin, *end),
        )

    def _position(self, mark: yaml.Mark) -> tuple[int, int]:
        """Return the line from 1 and the UTF-8 column from 0 of a mark, which counts characters."""
        text = self.source.line(mark.line + 1)
        return mark.line + 1, len(text[: mark.column].encode())


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
