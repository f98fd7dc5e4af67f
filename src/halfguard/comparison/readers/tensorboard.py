"""TensorBoard's event files: those of torch, Lightning, transformers and TensorFlow.

Each record of a file is an ``Event`` of TensorFlow's event.proto; the numbers below are its fields. Scalars
are float32, as ``add_scalar`` writes them. Hyperparameters come from ``add_hparams``, from Lightning's
hparams.yaml beside the file, or from the arguments that transformers logs as text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halfguard.comparison.encodings.hparams_yaml import read_hparams
from halfguard.comparison.encodings.protobuf import (
    MalformedMessageError,
    fields,
    float_of,
    messages,
    signed,
    text,
)
from halfguard.comparison.encodings.tensorboard_hparams import (
    logged_arguments,
    logged_hyperparameters,
)
from halfguard.comparison.encodings.tfrecord import tfrecords
from halfguard.comparison.logged_run import LoggedRun, MetricLog

NAME = "TensorBoard"
FILES = ("*tfevents*",)
RANK = 4  # last: its numbers are rounded to float32

_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5  # of Event
_TAG, _SIMPLE_VALUE, _TENSOR, _METADATA = 1, 2, 8, 9  # of Summary.Value
_FLOAT_VALUES, _DOUBLE_VALUES, _STRING_VALUES, _CONTENT = 5, 6, 8, 4  # of TensorProto
_DTYPES = {1: 4, 2: 8}  # float and double, with their bytes
_ARGUMENTS = "args/text_summary"  # the tag under which transformers logs its arguments


@dataclass
class _Log:
    """What the event files of one run say."""

    metrics: MetricLog = field(default_factory=MetricLog)
    config: dict[str, Any] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    damage: str | None = None


def read(files: Sequence[Path]) -> Iterator[LoggedRun]:
    """Yield one run for each folder with event files.

    ``add_hparams`` and ``add_scalars`` write to folders below the run's own. They belong to the run; names of
    metrics there begin with the folder's name, unless it is the time stamp that ``add_hparams`` uses.
    """
    folders = {path.parent for path in files}
    runs: dict[Path, list[Path]] = {}
    for path in sorted(files):
        above = [folder for folder in path.parents if folder in folders]
        runs.setdefault(above[-1], []).append(path)
    for folder, parts in runs.items():
        log = _Log(config=read_hparams(folder))
        for path in parts:
            _read_file(path, log, _prefix(path.parent.relative_to(folder)))
        seconds = max(log.times) - min(log.times) if log.times else math.nan
        yield LoggedRun(
            place=str(folder),
            name=folder.name,
            metrics=log.metrics,
            config=log.config,
            unfinished=log.damage,
            seconds=seconds,
        )


def _prefix(below: Path) -> str:
    try:
        float(below.name)
    except ValueError:
        return "" if below == Path() else f"{below.as_posix()}/"
    return ""


def _read_file(path: Path, log: _Log, prefix: str) -> None:
    try:
        for event in tfrecords(path):
            _add_event(event, log, prefix)
    except MalformedMessageError as error:
        log.damage = f"{path.name} is damaged ({error})"


def _add_event(event: bytes, log: _Log, prefix: str) -> None:
    step, summaries = 0, []
    for number, value in fields(event):
        if number == _STEP:
            step = signed(value)
        elif number == _SUMMARY and isinstance(value, bytes):
            summaries.append(value)
        elif number == _WALL_TIME:
            log.times = [*log.times[:1], float_of(value)]
    for summary in summaries:
        for value in messages(summary, 1):
            _add_value(value, step, log, prefix)


def _add_value(message: bytes, step: int, log: _Log, prefix: str) -> None:
    tag = ""
    for number, value in fields(message):
        if number == _TAG and isinstance(value, bytes):
            tag = value.decode(errors="replace")
        elif number == _SIMPLE_VALUE:
            log.metrics.add(f"{prefix}{tag}", step, float_of(value))
        elif number == _TENSOR and isinstance(value, bytes):
            scalar = _scalar(value)
            if scalar is not None:
                log.metrics.add(f"{prefix}{tag}", step, scalar)
            elif tag == _ARGUMENTS:
                log.config |= logged_arguments(text(value, _STRING_VALUES))
        elif number == _METADATA and isinstance(value, bytes):
            log.config |= logged_hyperparameters(value)


def _scalar(tensor: bytes) -> float | None:
    """Return the number of a tensor with one float or double, as newer writers log scalars."""
    dtype, found = 0, b""
    for number, value in fields(tensor):
        if number == 1:
            dtype = signed(value)
        elif number in (_FLOAT_VALUES, _DOUBLE_VALUES, _CONTENT) and isinstance(value, bytes):
            found = value
    return float_of(found) if found and len(found) == _DTYPES.get(dtype) else None
