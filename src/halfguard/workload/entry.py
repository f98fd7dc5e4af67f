"""Load the workload that an ENTRY names: ``path/to/file.py:function`` or ``package.module:function``.

The function is the user's and may fail in any way. The error message then names the user's own line and
shows no traceback through halfguard.
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
from halfguard.step.random_state import seeded
from halfguard.workload.job import Workload
from halfguard.workload.user_error import describe_error

_ENTRY_FORM = "An ENTRY is path/to/file.py:function or package.module:function."


def load(entry: str, seed: int = 0) -> Workload:
    """Call the function that ``entry`` names with ``seed`` and return its workload.

    Loading it again, or calling ``fresh()`` on the result, gives an identical workload. The global random
    state is restored.
    """
    place, colon, name = entry.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise UsageError(f"{entry!r} is not an ENTRY.", cure=_ENTRY_FORM)
    with _import_path(place):
        module = _import(entry, place)
        function = _find_function(entry, module, name)
        with seeded(seed), _user_errors(f"{entry} raised"):
            workload = function(seed)
    if not isinstance(workload, Workload):
        raise UsageError(
            f"{entry} returned a {type(workload).__name__}, not a Workload.",
            cure="End it with: return halfguard.Workload(model, loss, batches, optimizer)",
        )
    if _is_empty(workload.batches):
        raise UsageError(
            f"{entry} returned a workload without a single batch.",
            cure="Give it at least one batch; a DataLoader with drop_last=True has none if the dataset is "
            "smaller than a batch.",
        )
    workload.seed = seed
    workload.remake = lambda: load(entry, seed)
    return workload


@contextmanager
def _user_errors(what: str) -> Iterator[None]:
    """Turn an exception of the user's code into one sentence that names the user's line."""
    try:
        yield
    except HalfguardError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{what} {describe_error(error)}",
            cure="Run the function by itself to see the whole traceback.",
        ) from error


@contextmanager
def _import_path(place: str) -> Iterator[None]:
    """Let the entry import modules beside it, as if Python had been started with it."""
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
        raise UsageError(f"{entry}: there is no module {place!r} to import.", cure=_ENTRY_FORM)
    with _user_errors(f"Importing {place} raised"):
        return importlib.import_module(place)


def _import_file(entry: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"{entry}: there is no file {str(path)!r}.", cure=_ENTRY_FORM)
    path = path.resolve()
    name = f"halfguard_entry_{path.stem}_{abs(hash(path)):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{entry}: {path.name} is not a Python file.", cure=_ENTRY_FORM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    try:
        with _user_errors(f"Importing {path.name} raised"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _find_function(entry: str, module: ModuleType, name: str) -> Callable[[int], Any]:
    function = getattr(module, name, None)
    if callable(function):
        _raise_if_without_seed(entry, function, name)
        return function  # type: ignore[no-any-return]
    if function is not None:
        raise UsageError(f"{entry}: {name} is a {type(function).__name__}, not a function.")
    names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    raise UsageError(
        f"{entry}: there is no function {name!r} in it.",
        cure=f"Did you mean: {', '.join(close)}?" if close else _ENTRY_FORM,
    )


def _raise_if_without_seed(entry: str, function: Callable[..., Any], name: str) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function in C has no signature
        return
    try:
        signature.bind(0)
    except TypeError as error:
        raise UsageError(
            f"{entry}: halfguard calls {name} with one argument, the seed; it is {name}{signature}.",
            cure=f"Write it as: def {name}(seed): ...",
        ) from error


def _is_empty(batches: Any) -> bool:
    """Return whether there are no batches; False if the number is not known."""
    try:
        return len(batches) == 0
    except TypeError:
        return False
