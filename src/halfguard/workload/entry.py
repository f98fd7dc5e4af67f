"""From an ENTRY string to a workload: ``path/to/file.py:function`` or ``package.module:function``.

The function is the user's and may fail in any way. A failure is answered with the line of theirs where
it happened, not with a traceback through ours.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from halfguard.errors import HalfguardError, UsageError
from halfguard.workload.job import Workload
from halfguard.workload.seeding import seeded
from halfguard.workload.user_error import told

_FORM = "An ENTRY is path/to/file.py:function or package.module:function."


def load(entry: str, seed: int = 0) -> Workload:
    """Call the function that ``entry`` names with ``seed``; the global random state is left as it was.

    Loading it again, or ``fresh()`` on what is returned, gives an identical workload.
    """
    place, colon, name = entry.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise UsageError(f"{entry!r} is not an ENTRY.", cure=_FORM)
    with _importable(place):
        module = _import(entry, place)
        function = _function(entry, module, name)
        with seeded(seed), _blamed(f"{entry} raised"):
            workload = function(seed)
    if not isinstance(workload, Workload):
        raise UsageError(
            f"{entry} returned a {type(workload).__name__}, not a Workload.",
            cure="End it with: return halfguard.Workload(model, loss, batches, optimizer)",
        )
    if _is_empty(workload.batches):
        raise UsageError(
            f"{entry} returned a workload without a single batch.",
            cure="Put at least one into its batches; a DataLoader with drop_last=True has none if the "
            "dataset is smaller than a batch.",
        )
    workload.seed = seed
    workload.remake = lambda: load(entry, seed)
    return workload


@contextmanager
def _blamed(what: str) -> Iterator[None]:
    """Turn whatever the user's code raises into one sentence that names their line."""
    try:
        yield
    except HalfguardError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{what} {told(error)}",
            cure="Run the function by itself to see the whole traceback.",
        ) from error


@contextmanager
def _importable(place: str) -> Iterator[None]:
    """Let the entry import its neighbours, as if Python had been started on it."""
    before = list(sys.path)
    sys.path.insert(0, str(Path(place).resolve().parent) if _is_file(place) else str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place or "\\" in place


def _import(entry: str, place: str) -> ModuleType:
    if _is_file(place):
        return _import_file(entry, Path(place))
    try:
        spec = importlib.util.find_spec(place)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise UsageError(f"{entry}: there is no module {place!r} to import.", cure=_FORM)
    with _blamed(f"Importing {place} raised"):
        return importlib.import_module(place)


def _import_file(entry: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"{entry}: there is no file {str(path)!r}.", cure=_FORM)
    path = path.resolve()
    name = f"halfguard_entry_{path.stem}_{abs(hash(path)):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{entry}: {path.name} is not a Python file.", cure=_FORM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    try:
        with _blamed(f"Importing {path.name} raised"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _function(entry: str, module: ModuleType, name: str) -> Callable[[int], Any]:
    function = getattr(module, name, None)
    if callable(function):
        _refuse_without_seed(entry, function, name)
        return function  # type: ignore[no-any-return]
    if function is not None:
        raise UsageError(f"{entry}: {name} is a {type(function).__name__}, not a function.")
    names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    raise UsageError(
        f"{entry}: there is no function {name!r} in it.",
        cure=f"Did you mean: {', '.join(close)}?" if close else _FORM,
    )


def _refuse_without_seed(entry: str, function: Callable[..., Any], name: str) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a function in C nothing is known
        return
    try:
        signature.bind(0)
    except TypeError as error:
        raise UsageError(
            f"{entry}: halfguard calls {name} with one argument, the seed; it is {name}{signature}.",
            cure=f"Write it as: def {name}(seed): ...",
        ) from error


def _is_empty(batches: Any) -> bool:
    """Whether there are known to be none; of what has no length nothing is known."""
    try:
        return len(batches) == 0
    except TypeError:
        return False
