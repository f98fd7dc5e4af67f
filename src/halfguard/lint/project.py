"""How a project trains, read from the bytes of all its files.

A loss function in a file of its own does not show its precision; the project that it belongs to does. A
project that never mentions float16 cannot overflow it, so the rules about its range are not run there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = ("pyproject.toml", "setup.py", "setup.cfg")
_REQUIREMENTS = re.compile(r".*requirements.*\.txt|pyproject\.toml|setup\.cfg|Pipfile")
_MAX_FILES = 20_000
_MAX_BYTES = 2_000_000

# For each fact: texts that a file may contain, each with the pattern that then proves the fact; an empty one
# means that the text is proof. A text is searched much faster than a pattern with alternatives, and a pattern
# begins with its text where it can, because re then searches for that.
_SEARCHES: dict[str, tuple[tuple[bytes, bytes], ...]] = {
    "known": ((b".backward(", b""), (b"Trainer(", b""), (b"def training_step", b"")),
    # Autocast to float16, by torch or by a framework. A scaler proves it: bfloat16 needs none.
    "mixed": (
        (b"GradScaler", b""),
        (b"cuda.amp", b""),
        (b"amp.initialize", b""),
        (b"16-mixed", rb"16-mixed[\"'](?<=[\"']16-mixed.)"),
        (b"precision", rb"precision\s*[=:]\s*[\"']?16\b"),
        (b"mixed_precision", rb"mixed_precision\s*[=:(,]+\s*[\"']?fp16"),
        (b"autocast(", rb"autocast\((?:[^)\n]*[^b]float16|\s*[\"']cuda[\"']\s*\))"),
    ),
    # An option for float16 proves it only if something of the project can read it.
    "half_option": (
        (b"fp16", rb"fp16(?:[\"'](?<=[\"']fp16.)|(?<=\bfp16)\s*[=:]\s*[Tt]rue|(?<=--fp16))"),
        (b"--amp", rb"--amp\b"),
        (b"use_amp", rb"use_amp\b"),
        (b"use_fp16", rb"use_fp16\b"),
        (b"use_mixed_precision", rb"use_mixed_precision\b"),
    ),
    "can_lower": (
        (b"autocast", b""),
        (b"amp.", rb"\bamp\."),
        (b".half(", b""),
        (b"torch.half", b""),
        (b"torch.float16", b""),
        (b"Half", b""),
        (b"FP16", b""),
        (b"to_fp16", b""),
        (b"Trainer", rb"\bTrainer\b"),
        (b"TrainingArguments", b""),
        (b"Accelerator", b""),
        (b"deepspeed", b""),
    ),
    "half_weights": (
        (b"convert_", rb"convert_(?:module_|weights_)?to_(?:f(?:p)?16|lp)"),
        (b"network_to_half", b""),
        (b"FP16_Optimizer", b""),
        (b"opt_level", rb"opt_level\s*=\s*[\"']O[23]"),
    ),
    "distributed": (
        (b"DistributedDataParallel", b""),
        (b"init_process_group", b""),
        (b"FullyShardedDataParallel", b""),
        (b"fully_shard", b""),
        (b"DDP(", rb"\bDDP\("),
    ),
    # A checkpoint of the optimizer is loaded again, by this project's own code or by a framework's.
    "resumes": (
        (b".load_state_dict(", rb"opt\w*(?:\[[^\]\n]*\]|\.optimizer)?\.load_state_dict\("),
    ),
    # A loss function or a criterion begins by casting its inputs to float32.
    "casting_losses": (
        (
            b".float()",
            (
                rb"(?:def|class) \w*(?:[Ll]oss|[Cc]riterion)\w*\([^\n]*\n(?:[^\n]*\n){0,20}?[^\n]*?"
                rb"(?:\b(\w+) = \1|\b(?:inputs?|outputs?|preds?|predictions?|logits|x))\.float\(\)"
            ),
        ),
    ),
    "needs_ampere": ((b"import flash_attn", b""), (b"from flash_attn", b"")),
    "pins_old_torch": tuple(
        (b"torch" + sign, b"torch" + sign + rb"=*\s?(?:[01]\.|2\.[0-2](?:[.\s\"',]|$))")
        for sign in (b"==", b" ==", b"~=", b" ~=", b"<", b" <")
    ),
    "allows_old_torch": tuple(
        (b"torch" + sign, b"torch" + sign + rb"=?\s?(?:[01]\.|2\.[0-2](?:[.\s\"',]|$))")
        for sign in (b">", b" >")
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Project:
    """Facts about the files of one project; nothing is known of a single file without a project."""

    known: bool = False  # a training loop was seen
    mixed: bool = False  # float16 autocast
    half_option: bool = False  # an option for float16
    can_lower: bool = False  # code that casts, or a framework that does
    half_weights: bool = False
    distributed: bool = False
    resumes: bool = False  # the state of an optimizer is loaded
    casting_losses: bool = False  # loss functions cast their inputs themselves
    needs_ampere: bool = False  # flash attention, which needs a GPU with native BF16
    pins_old_torch: bool = False  # requirements name a version without torch.amp.GradScaler
    allows_old_torch: bool = False  # requirements allow such a version

    @property
    def may_train_in_half(self) -> bool:
        """False only if the training loop is known and no file turns on float16."""
        return not self.known or self.mixed or self.half_weights


UNKNOWN = Project()


def find_root(path: Path) -> Path | None:
    """Return the folder of the repository that a path belongs to, or of the nearest package around it."""
    folders = [path.absolute(), *path.absolute().parents]
    for markers in ((".git",), _PACKAGE):
        for folder in folders:
            if any((folder / marker).exists() for marker in markers):
                return folder
    return path if path.is_dir() else None


def read_facts(data: bytes, known: Collection[str] = ()) -> set[str]:
    """Return the names of the facts that one file proves, without those that are already known."""
    if len(data) > _MAX_BYTES:
        return set()
    return {
        name
        for name, searches in _SEARCHES.items()
        if name not in known
        and any(
            text in data and (not pattern or re.search(pattern, data)) for text, pattern in searches
        )
    }


def read_project(files: Iterable[bytes]) -> Project:
    """Read the facts of a project from the contents of its files."""
    found: set[str] = set()
    for data in files:
        found |= read_facts(data, found)
    if {"half_option", "can_lower"} <= found:
        found.add("mixed")
    return Project(**dict.fromkeys(found, True))


def project_files(root: Path, excluded: tuple[str, ...]) -> Iterator[Path]:
    """Yield the Python, YAML and requirement files of a project, without hidden and excluded folders."""
    count = 0
    for parent, folders, files in os.walk(root):
        folders[:] = sorted(n for n in folders if not n.startswith(".") and n not in excluded)
        for name in files:
            if name.endswith((".py", ".yaml", ".yml")) or _REQUIREMENTS.fullmatch(name):
                count += 1
                if count > _MAX_FILES:
                    return
                yield Path(parent) / name
