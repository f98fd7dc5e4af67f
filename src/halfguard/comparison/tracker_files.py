"""Logs of trackers: TensorBoard, MLflow and wandb by their packages, Lightning's and transformers' without.

The packages are imported by the functions that need them; ``groups`` answers a missing one with its pip
command.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sqlite3
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from halfguard.comparison.logged_run import LoggedRun, MetricLog
from halfguard.errors import UsageError
from halfguard.validation.runs.metrics import numeric_values


class _PlainLoader(yaml.SafeLoader):
    """A safe loader that reads a tagged object as None: nothing is constructed."""


_PlainLoader.add_multi_constructor("", lambda loader, suffix, node: None)  # noqa: ARG005


def read_hparams(folder: Path) -> dict[str, Any]:
    """Return what Lightning's loggers write to hparams.yaml; nothing if it is missing or no mapping."""
    try:
        with (folder / "hparams.yaml").open(encoding="utf-8") as file:
            found = yaml.load(file, _PlainLoader)  # noqa: S506 - a SafeLoader
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def read_lightning_csv(files: Sequence[Path]) -> Iterator[LoggedRun]:
    """Yield one run for each ``metrics.csv``."""
    for path in files:
        folder = path.parent
        run = LoggedRun(str(folder), folder.name, config=read_hparams(folder))
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            for index, row in enumerate(csv.DictReader(file)):
                step = _number(row.get("step"))
                for name, cell in row.items():
                    value = _number(cell)  # an empty cell: not logged at this step
                    if value is not None and name not in ("step", None):
                        run.metrics.add(name, index if step is None else int(step), value)
        yield run


def _number(cell: object) -> float | None:
    try:
        return float(cell) if isinstance(cell, str) else None
    except ValueError:
        return None


def read_trainer_state(files: Sequence[Path]) -> Iterator[LoggedRun]:
    """Yield one run for each output folder of transformers' Trainer, from its newest checkpoint.

    The state has the whole log of the run so far. It does not say with which seed the run was started: the
    file beside it that does, training_args.bin, is a pickle, and is not opened.
    """
    runs: dict[Path, list[Path]] = {}
    for path in files:
        folder = path.parent
        in_checkpoint = re.fullmatch(r"checkpoint-\d+", folder.name)
        runs.setdefault(folder.parent if in_checkpoint else folder, []).append(path)
    for folder, parts in runs.items():
        states = [state for state in map(_state, parts) if state is not None]
        if not states:
            damage = f"{parts[-1].name} is damaged"
            yield LoggedRun(str(folder), folder.name, unfinished=damage)
            continue
        state = max(states, key=_global_step)
        name, trial = str(state.get("trial_name") or folder.name), state.get("trial_params")
        config = trial if isinstance(trial, dict) else {}
        yield LoggedRun(str(folder), name, _history(state.get("log_history")), config)


def _state(path: Path) -> dict[str, Any] | None:
    try:
        state = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return state if isinstance(state, dict) else None


def _global_step(state: dict[str, Any]) -> int:
    step = state.get("global_step")
    return step if isinstance(step, int) else 0


def _history(rows: object) -> MetricLog:
    metrics = MetricLog()
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict):
            logged = numeric_values({name: one for name, one in row.items() if one is not None})
            step = int(logged.pop("step", 0))
            for name, value in logged.items():
                metrics.add(name, step, value)
    return metrics


_LARGEST = 1.7976931348623157e308  # MLflow stores infinity as the largest double
_WANDB = b":W&B"
_INTERRUPTED = 255  # wandb's exit code for Ctrl-C
_BLOCK, _FILE_HEADER, _HEADER = 32768, 7, 7  # of LevelDB's log format, in which wandb writes
_FULL, _FIRST, _LAST = 1, 2, 4


def read_tensorboard(files: Sequence[Path]) -> Iterator[LoggedRun]:
    """Yield one run for each folder with event files; scalars are float32, as ``add_scalar`` writes them.

    ``add_hparams`` and ``add_scalars`` write to folders below the run's own. They belong to the run; names of
    metrics there begin with the folder's name, unless it is the time stamp that ``add_hparams`` uses.
    """
    folders = {path.parent for path in files}
    runs: dict[Path, list[Path]] = {}
    for path in files:
        above = [folder for folder in path.parents if folder in folders]
        runs.setdefault(above[-1], []).append(path)
    for folder, parts in runs.items():
        run = LoggedRun(str(folder), folder.name, config=read_hparams(folder))
        times: list[float] = []
        for path in parts:
            prefix = _prefix(path.parent.relative_to(folder))
            for event in _events(path, run):
                times = [*times[:1], event.wall_time]
                for value in event.summary.value:
                    _add_value(run, value, event.step, prefix)
        run.seconds = max(times) - min(times) if times else math.nan
        yield run


def _prefix(below: Path) -> str:
    try:
        float(below.name)
    except ValueError:
        return "" if below == Path() else f"{below.as_posix()}/"
    return ""


def _events(path: Path, run: LoggedRun) -> Iterator[Any]:
    """Yield the events of a file up to the last whole one, and say so if it is not the last of the file.

    ``EventAccumulator`` would drop values of long runs and hide damage, so the loader below it is used.
    """
    from tensorboard.backend.event_processing.event_file_loader import (  # noqa: PLC0415
        RawEventFileLoader,
    )
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415

    end = 0
    for record in RawEventFileLoader(str(path)).Load():
        end += len(record) + 16  # with its length and two checksums
        yield Event.FromString(record)
    with path.open("rb") as file:
        file.seek(end)
        rest = file.read(8)
    if len(rest) == 8 and end + 16 + struct.unpack("<Q", rest)[0] <= path.stat().st_size:
        run.unfinished = f"{path.name} is damaged (wrong checksum after byte {end})"


def _add_value(run: LoggedRun, value: Any, step: int, prefix: str) -> None:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData  # noqa: PLC0415
    from tensorboard.util.tensor_util import make_ndarray  # noqa: PLC0415

    plugin = value.metadata.plugin_data
    if plugin.plugin_name == "hparams":
        start = HParamsPluginData.FromString(plugin.content).session_start_info
        run.config |= {name: _plain(one) for name, one in start.hparams.items()}
    elif value.HasField("simple_value"):
        run.metrics.add(prefix + value.tag, step, value.simple_value)
    elif value.HasField("tensor") and value.tag == "args/text_summary":  # transformers' arguments
        run.config |= _object(b"".join(value.tensor.string_val))
    elif value.HasField("tensor") and value.tensor.dtype in (1, 2):  # float and double
        array = make_ndarray(value.tensor)
        if array.size == 1:  # as newer writers log scalars
            run.metrics.add(prefix + value.tag, step, array.item())


def _plain(value: Any) -> object:
    """Return a ``google.protobuf.Value`` that is a number, a text or a boolean."""
    kind = value.WhichOneof("kind")
    found = getattr(value, kind) if kind in ("number_value", "string_value", "bool_value") else None
    return int(found) if isinstance(found, float) and found.is_integer() else found


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def read_mlflow(files: Sequence[Path]) -> Iterator[LoggedRun]:
    """Yield every run of SQLite stores that was not deleted, of all experiments.

    A copy is opened, because MLflow's client may write to its store.
    """
    for path in files:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "mlflow.db")
            try:
                found = _copy_store(path, copy)
            except sqlite3.Error as error:
                raise UsageError(f"MLflow's store {path} cannot be read: {error}.") from error
            if found:
                yield from _mlflow_runs(copy, path)


def _copy_store(path: Path, copy: Path) -> bool:
    """Copy a store; return False for other files and for databases of other programs."""
    magic = b"SQLite format 3\0"
    with path.open("rb") as file:
        if file.read(len(magic)) != magic:
            return False
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as store:
        tables = {name for (name,) in store.execute("select name from sqlite_master")}
        if not tables >= {"experiments", "runs", "metrics", "alembic_version"}:
            return False
        with closing(sqlite3.connect(copy)) as target:
            store.backup(target)
    return True


def _mlflow_runs(copy: Path, path: Path) -> Iterator[LoggedRun]:
    from mlflow import MlflowClient, MlflowException  # noqa: PLC0415

    try:
        client = MlflowClient(f"sqlite:///{copy}")
        experiments = {one.experiment_id: one.name for one in client.search_experiments()}
    except MlflowException as error:  # the schema of another version
        reason = str(error).replace(str(copy), str(path))
        raise UsageError(f"MLflow's store {path} cannot be read: {reason}") from error
    runs = client.search_runs(list(experiments), max_results=50_000)
    for own in sorted(runs, key=lambda one: (one.info.start_time, one.info.run_id)):
        info = own.info
        tags = {key: one for key, one in own.data.tags.items() if not key.startswith("mlflow.")}
        labels = {
            "id": info.run_id, "name": info.run_name or "", "experiment": experiments[info.experiment_id]
        }  # fmt: skip
        run = LoggedRun(
            f"{path}:id={info.run_id}", info.run_name or info.run_id, labels=tags | labels
        )
        run.config |= own.data.params
        if info.start_time and info.end_time:
            run.seconds = (info.end_time - info.start_time) / 1000
        if info.status == "FAILED":
            run.failure = "its status in MLflow is FAILED"
        elif info.status != "FINISHED":
            run.unfinished = f"its status in MLflow is {info.status}"
        for name in own.data.metrics:
            history = client.get_metric_history(info.run_id, name)
            for one in sorted(history, key=lambda one: (one.step, one.timestamp)):
                infinite = abs(one.value) >= _LARGEST
                value = math.copysign(math.inf, one.value) if infinite else one.value
                run.metrics.add(name, one.step, value)
        yield run


def read_wandb(files: Sequence[Path]) -> Iterator[LoggedRun]:
    """Yield one run for each run id: a resumed run continues in another file.

    wandb has no function that reads its files without a server. Its ``Record`` is the type of all that is
    logged, and has only grown; the frame around the records is that of LevelDB.
    """
    runs: dict[str, LoggedRun] = {}
    for path in sorted(files, key=lambda path: (path.parent.name, path.name)):
        data = path.read_bytes()
        if not data.startswith(_WANDB):
            continue
        run = runs.setdefault(path.stem, LoggedRun(str(path.parent)))
        run.failure = None  # the last file says how the run ended
        run.unfinished = "its wandb log has no end: it is still running or was killed"
        try:
            _add_records(run, _log_records(data))
        except ValueError as error:
            run.unfinished = f"{path.name} is damaged ({error})"
    yield from runs.values()


def _add_records(run: LoggedRun, records: Iterator[bytes]) -> None:
    from google.protobuf.message import DecodeError  # noqa: PLC0415
    from wandb.proto.wandb_internal_pb2 import Record  # noqa: PLC0415

    for data in records:
        try:
            record = Record.FromString(data)
        except DecodeError as error:
            raise ValueError(str(error)) from error
        kind = record.WhichOneof("record_type")
        if kind == "history":
            _add_history(run, record.history)
        elif kind == "config":
            _add_config(run, record.config)
        elif kind == "run":
            own = record.run
            run.name = own.display_name or run.name
            labels = {
                "id": own.run_id, "project": own.project, "group": own.run_group, "name": run.name,
                "job_type": own.job_type, "tags": ",".join(own.tags),
            }  # fmt: skip
            run.labels |= {name: value for name, value in labels.items() if value}
            _add_config(run, own.config)
        elif kind == "exit":
            code = record.exit.exit_code
            run.unfinished = "it was interrupted" if code == _INTERRUPTED else None
            if code not in (0, _INTERRUPTED):
                run.failure = f"it ended with exit code {code}"


def _add_config(run: LoggedRun, config: Any) -> None:
    found = _items(config.update)
    run.config |= {name: value for name, value in found.items() if not name.startswith("_")}


def _add_history(run: LoggedRun, history: Any) -> None:
    items = _items(history.item)
    step = history.step.num if history.HasField("step") else items.get("_step")
    if isinstance(items.get("_runtime"), int | float):
        run.seconds = float(items["_runtime"])
    logged = {name: value for name, value in items.items() if value is not None}
    for name, number in numeric_values(logged).items():
        if not name.startswith("_"):
            run.metrics.add(name, int(step or 0), number)


def _items(items: Iterable[Any]) -> dict[str, Any]:
    """Return names and values of history or configuration; a nested name is joined by dots."""
    found = {}
    for item in items:
        name = item.key or ".".join(item.nested_key)
        try:
            found[name] = json.loads(item.value_json or "null")
        except ValueError:
            found[name] = None
    return found


def _log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file up to the last complete one; a long one continues in the next block."""
    at, parts = _FILE_HEADER, b""
    while at + _HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left  # the rest of a block is too short for a header
            continue
        checksum, size, kind = struct.unpack_from("<IHB", data, at)
        body = data[at + _HEADER : at + _HEADER + size]
        if len(body) < size:
            return  # the last record is still being written
        if zlib.crc32(body, zlib.crc32(bytes([kind]))) != checksum:
            raise ValueError(f"wrong checksum at byte {at}")
        parts = body if kind in (_FULL, _FIRST) else parts + body
        if kind in (_FULL, _LAST):
            yield parts
        at += _HEADER + size
