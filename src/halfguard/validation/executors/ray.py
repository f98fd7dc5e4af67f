"""Runs as Ray tasks: Ray knows the nodes, their processors and accelerators, and places a run on one.

Each task gets a worker process of its own (``max_calls=1``), like a local one. Ray is told not to retry:
its retries would not be counted, and a finished run whose result was on a lost node would be run again
behind the ledger's back. A run whose node died is submitted anew, here, where attempts are counted.

Ray holds more tasks than it has room for. So a task yields twice, first that it has begun: what was cut off
by the budget of time is a finding, what still waited for its turn is not.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from halfguard.errors import HalfguardError, MissingExtraError, UsageError
from halfguard.validation.executors import ATTEMPTS, cut_off, lost, may_begin
from halfguard.validation.executors.worker import Answer, execute
from halfguard.validation.ledger import Result, parse
from halfguard.validation.runs.task import Task
from halfguard.validation.sections import ExecutorSpec

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ModuleNotFoundError as error:
    raise MissingExtraError("executor: ray", "ray") from error

_POLL = 1.0
_BEGUN = "begun"


class RayExecutor:
    """Uses the cluster at ``address``, or one that is connected already, or starts one here."""

    def __init__(self, spec: ExecutorSpec) -> None:
        self.spec = spec

    def run(self, tasks: Sequence[Task], *, deadline: float) -> Generator[tuple[Task, Result]]:
        """See ``Executor``."""
        started = not ray.is_initialized()
        context = None
        if started:
            context = ray.init(
                address=self.spec.address, log_to_driver=False, include_dashboard=False
            )
        flight = _Flight(self._remote(), list(tasks), self.spec.workers)
        try:
            _refuse_too_small(self.spec, grows=not _is_ours(context))
            while flight.fill() and time.monotonic() < deadline:
                yield from flight.landed(_POLL)
            yield from flight.landed(0)
            yield from flight.cut_off()
        finally:
            flight.cancel()
            if started:
                ray.shutdown()

    def _remote(self) -> Any:
        return ray.remote(
            num_cpus=self.spec.cpus,
            num_gpus=self.spec.gpus,
            resources=self.spec.resources,
            max_retries=0,
            max_calls=1,
            num_returns="streaming",
            scheduling_strategy="SPREAD",
        )(_execute)


def _execute(task_json: str, attempt: int) -> Iterator[str]:
    yield _BEGUN
    yield execute(task_json, attempt)


class _Flight:
    """The tasks that Ray has, and those that it shall have."""

    def __init__(self, remote: Any, tasks: list[Task], limit: int | None) -> None:
        self._remote, self._limit = remote, limit or len(tasks)
        self._waiting = [(task, 1) for task in reversed(tasks)]
        self._flying: dict[Any, tuple[Task, int]] = {}
        self._begun: dict[Any, float] = {}  # and since when

    def fill(self) -> bool:
        """Submit what may be; false when there is nothing left to wait for."""
        while self._waiting and len(self._flying) < self._limit:
            task, attempt = self._waiting[-1]
            if not may_begin(task, [other for other, _ in self._flying.values()]):
                break
            self._waiting.pop()
            self._flying[self._remote.remote(task.model_dump_json(), attempt)] = (task, attempt)
        return bool(self._flying)

    def landed(self, seconds: float) -> Iterator[tuple[Task, Result]]:
        """All results that have come in, after at most so many seconds."""
        while ready := self._ready(seconds):
            for flying in ready:
                yield from self._take(flying)
            seconds = 0  # what has begun may have ended too

    def _ready(self, seconds: float) -> list[Any]:
        """Whatever has news: ``ray.wait`` wakes with the first, and then tells of that one alone."""
        flying = list(self._flying)
        if not flying or not ray.wait(flying, timeout=seconds)[0]:
            return []
        ready: list[Any] = ray.wait(flying, num_returns=len(flying), timeout=0)[0]
        return ready

    def _take(self, flying: Any) -> Iterator[tuple[Task, Result]]:
        task, attempt = self._flying[flying]
        try:
            answer: Any = ray.get(next(flying))
        except RayTaskError as error:
            raise HalfguardError(f"The run {task.key} broke: {error}.") from error
        except RayError as error:  # the worker, its node or its memory is gone
            del self._flying[flying]
            if attempt < ATTEMPTS:
                self._waiting.append((task, attempt + 1))
            else:
                yield task, lost(task, type(error).__name__)
            return
        if answer == _BEGUN:
            self._begun[flying] = time.monotonic()
            return
        del self._flying[flying]
        yield task, parse(task, Answer.model_validate_json(answer).take())

    def cut_off(self) -> Iterator[tuple[Task, Result]]:
        """What has begun and not ended."""
        for flying, (task, attempt) in self._flying.items():
            if flying in self._begun:
                seconds = time.monotonic() - self._begun[flying]
                yield task, cut_off(task, attempt, f"it was under way for {seconds:.0f} s")
            elif attempt > 1:
                yield task, cut_off(task, attempt - 1, "its worker had died")
        for task, attempt in self._waiting:
            if attempt > 1:
                yield task, cut_off(task, attempt - 1, "its worker had died")

    def cancel(self) -> None:
        """Stop what is under way."""
        for flying in self._flying:
            ray.cancel(flying, force=True)


def _refuse_too_small(spec: ExecutorSpec, *, grows: bool) -> None:
    """Raise if no node can hold a run; where another may yet join, say what is waited for."""
    wanted = {"CPU": spec.cpus, "GPU": spec.gpus, **spec.resources}
    known: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [node["Resources"] for node in known if node["Alive"]]
    if any(all(node.get(k, 0) >= count for k, count in wanted.items()) for node in nodes):
        return
    largest = max(nodes, key=lambda node: [node.get(name, 0) for name in reversed(wanted)])
    told = (
        f"executor: no node of the Ray cluster can hold a run with {_told(wanted, wanted)}; the largest "
        f"has {_told(largest, wanted)}."
    )
    if not grows:
        cure = "Ask for less in cpus, gpus and resources, or name another cluster as address."
        raise UsageError(told, cure=cure)
    warnings.warn(f"{told} Runs wait until such a node joins.", stacklevel=2)


def _told(resources: Mapping[str, float], names: Mapping[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in names)


def _is_ours(context: object) -> bool:
    """Whether ``ray.init`` started the cluster, not joined one: its session has our process's number."""
    session = str((getattr(context, "address_info", None) or {}).get("session_dir"))
    return session.endswith(f"_{os.getpid()}")
