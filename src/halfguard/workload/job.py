"""``Workload``, the five things that describe a training job, and the ENTRY that names one.

The instruments run a job many times: in FP32, in 16 bits, with different islands. So a workload must be
repeatable. ``fresh()`` returns another one in the same state: it calls the user's function again or, for a
workload made without an ENTRY, makes a deep copy. ``take(n)`` iterates its batches from the start.

An ENTRY is ``path/to/file.py:function`` or ``package.module:function``. The function is the user's and may
fail in any way; the error message then names the user's own line.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.errors import HalfguardError, UsageError
from halfguard.precision.master_weights import MasterWeights
from halfguard.precision_names import Precision
from halfguard.step.loss import LossFunction, scalar_loss
from halfguard.step.random_state import seeded
from halfguard.workload.user_error import describe_error

Batches = Iterable[Any] | Callable[[], Iterable[Any]]


@dataclass
class Workload:
    """A training job: for each of ``batches``, compute ``loss(model, batch)`` and step ``optimizer``.

    ``loss`` returns a tensor, or a mapping with the key ``"loss"``. ``batches`` is a list, a DataLoader, or
    a function that returns an iterable. It is restarted when it ends. ``evaluate(model)`` returns metrics.
    ``clip_norm`` is the limit for gradient clipping by total norm, after unscaling.
    """

    model: nn.Module
    loss: LossFunction
    batches: Batches
    optimizer: Optimizer
    evaluate: Callable[[nn.Module], Any] | None = None
    clip_norm: float | None = field(default=None, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    remake: Callable[[], Workload] | None = field(default=None, kw_only=True, repr=False)

    @property
    def device(self) -> torch.device:
        """The device of the model's first parameter."""
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def fresh(self) -> Workload:
        """Return a new workload in the initial state of this one. The two share only the data."""
        if self.remake is not None:
            return self.remake()
        try:
            model, optimizer = copy.deepcopy((self.model, self.optimizer))
        except Exception as error:
            raise UsageError(
                f"Cannot copy the workload's model and optimizer for a second run: {error}",
                cure="Describe the job as a function of a seed that returns a Workload, and load it "
                "with halfguard.workload.load('file.py:function', seed=0).",
            ) from error
        return replace(self, model=model, optimizer=optimizer)

    def store_weights_as(self, precision: Precision) -> None:
        """Convert the weights for ``precision``. FP16 weights get FP32 master weights in the optimizer."""
        if precision.needs_master_weights:
            self.model.half()  # in place: the optimizer keeps the same parameters
            self.optimizer = MasterWeights(self.optimizer)

    def take(self, count: int) -> Iterator[Any]:
        """Yield ``count`` batches. After the last batch, start again with the first one."""
        taken = 0
        while taken < count:
            batches, before = self._start(), taken
            for batch in batches:
                yield batch
                taken += 1
                if taken == count:
                    return
            if taken == before or (iter(batches) is batches and not callable(self.batches)):
                raise UsageError(
                    f"The workload has only {taken} of {count} batches, and they cannot be "
                    "restarted.",
                    cure="Pass a list, a DataLoader, or a function that returns a new iterator.",
                )

    def _start(self) -> Iterable[Any]:
        batches: Any = self.batches() if callable(self.batches) else self.batches
        if not isinstance(batches, Iterable) and not hasattr(batches, "__getitem__"):
            raise UsageError(
                f"The workload's batches are a {type(batches).__name__}, which cannot be iterated.",
                cure="Pass a list, a DataLoader, or a function that returns an iterable.",
            )
        return batches  # type: ignore[no-any-return]

    def loss_of(self, batch: Any) -> Tensor:
        """Return the loss of one batch as a scalar tensor."""
        return scalar_loss(self.loss(self.model, batch))


_ENTRY_FORM = "An ENTRY is path/to/file.py:function or package.module:function."


def load(entry: str, seed: int = 0) -> Workload:
    """Call the function that ``entry`` names with ``seed`` and return its workload.

    Calling this again, or calling ``fresh()`` on the result, returns an identical workload. The global
    random state is restored.
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
            cure=(
                "End the function with: return halfguard.Workload(model, loss, batches, optimizer)"
            ),
        )
    if _is_empty(workload.batches):
        raise UsageError(
            f"{entry} returned a workload without batches.",
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
            cure="Run the function without halfguard to see the whole traceback.",
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
        raise UsageError(f"{entry}: the module {place!r} does not exist.", cure=_ENTRY_FORM)
    with _user_errors(f"Importing {place} raised"):
        return importlib.import_module(place)


def _import_file(entry: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"{entry}: the file {str(path)!r} does not exist.", cure=_ENTRY_FORM)
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
        f"{entry}: there is no function {name!r} in this file or module.",
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
            f"{entry}: halfguard calls {name} with one argument, the seed, but it is defined as "
            f"{name}{signature}.",
            cure=f"Define it as: def {name}(seed): ...",
        ) from error


def _is_empty(batches: Any) -> bool:
    """Return whether there are no batches; False if the number is not known."""
    try:
        return len(batches) == 0
    except TypeError:
        return False
