"""Runs as Ray tasks: Ray knows the nodes, their processors and accelerators, and places each run.

Each task gets its own worker process (``max_calls=1``), as in the local executor. Ray's own retries are off:
they would not be counted, and a finished run whose result was on a lost node would be repeated unnoticed.
Instead, a run whose node died is submitted again here, where attempts are counted.

Ray accepts more tasks than it can run at once. So a task yields twice, the first time when it starts. When
the time budget ends, this tells tasks that were running (timed out) from tasks that were still queued.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from halfguard.errors import HalfguardError, UsageError
from halfguard.validation.executors import MAX_ATTEMPTS, lost_result, may_start, timed_out_result
from halfguard.validation.executors.worker import TaskReply, execute
from halfguard.validation.finished_runs import Result, parse_result
from halfguard.validation.runs.task import Task
from halfguard.validation.spec import ExecutorSpec

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ModuleNotFoundError as error:
    raise UsageError(
        "executor: ray needs Ray, which is not installed.", cure="Run: pip install 'ray>=2.40'"
    ) from error

_POLL = 1.0
_STARTED = "started"


def make_executor(spec: ExecutorSpec) -> RayExecutor:
    """Create the executor of a specification of this kind."""
    return RayExecutor(spec)


class RayExecutor:
    """Uses the cluster at ``address`` or one that is already connected, or starts one here."""

    def __init__(self, spec: ExecutorSpec) -> None:
        self.spec = spec

    def run(self, tasks: Sequence[Task], *, deadline: float) -> Generator[tuple[Task, Result]]:
        initialize = not ray.is_initialized()
        context = None
        if initialize:
            context = ray.init(
                address=self.spec.address, log_to_driver=False, include_dashboard=False
            )
        queue = _RayQueue(self._remote(), list(tasks), self.spec.workers)
        try:
            _check_node_size(self.spec, may_grow=not _started_cluster(context))
            while queue.submit() and time.monotonic() < deadline:
                yield from queue.collect(_POLL)
            yield from queue.collect(0)
            yield from queue.timed_out()
        finally:
            queue.cancel()
            if initialize:
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
    yield _STARTED
    yield execute(task_json, attempt)


class _RayQueue:
    """Tasks that were submitted to Ray, and tasks that wait to be submitted."""

    def __init__(self, remote: Any, tasks: list[Task], limit: int | None) -> None:
        self._remote, self._limit = remote, limit or len(tasks)
        self._waiting = [(task, 1) for task in reversed(tasks)]
        self._submitted: dict[Any, tuple[Task, int]] = {}
        self._start_times: dict[Any, float] = {}

    def submit(self) -> bool:
        """Submit as many tasks as allowed; return False when there is nothing left to wait for."""
        while self._waiting and len(self._submitted) < self._limit:
            task, attempt = self._waiting[-1]
            if not may_start(task, [other for other, _ in self._submitted.values()]):
                break
            self._waiting.pop()
            self._submitted[self._remote.remote(task.model_dump_json(), attempt)] = (task, attempt)
        return bool(self._submitted)

    def collect(self, seconds: float) -> Iterator[tuple[Task, Result]]:
        """Wait at most ``seconds`` and yield all results that have arrived."""
        while ready := self._ready(seconds):
            for reference in ready:
                yield from self._read(reference)
            seconds = 0  # a task that has started may have ended too

    def _ready(self, seconds: float) -> list[Any]:
        """Return all tasks with output: the first ``ray.wait`` returns only one of them."""
        submitted = list(self._submitted)
        if not submitted or not ray.wait(submitted, timeout=seconds)[0]:
            return []
        ready: list[Any] = ray.wait(submitted, num_returns=len(submitted), timeout=0)[0]
        return ready

    def _read(self, reference: Any) -> Iterator[tuple[Task, Result]]:
        task, attempt = self._submitted[reference]
        try:
            reply: Any = ray.get(next(reference))
        except RayTaskError as error:
            raise HalfguardError(f"The run {task.key} failed in Ray: {error}.") from error
        except RayError as error:  # the worker or its node died, or it ran out of memory
            del self._submitted[reference]
            if attempt < MAX_ATTEMPTS:
                self._waiting.append((task, attempt + 1))
            else:
                yield task, lost_result(task, type(error).__name__)
            return
        if reply == _STARTED:
            self._start_times[reference] = time.monotonic()
            return
        del self._submitted[reference]
        yield task, parse_result(task, TaskReply.model_validate_json(reply).result_or_raise())

    def timed_out(self) -> Iterator[tuple[Task, Result]]:
        """Yield results for tasks that have started and not ended."""
        for reference, (task, attempt) in self._submitted.items():
            if reference in self._start_times:
                seconds = time.monotonic() - self._start_times[reference]
                state = f"it had been running for {seconds:.0f} s"
                yield task, timed_out_result(task, attempt, state)
            elif attempt > 1:
                yield task, timed_out_result(task, attempt - 1, "its worker had died")
        for task, attempt in self._waiting:
            if attempt > 1:
                yield task, timed_out_result(task, attempt - 1, "its worker had died")

    def cancel(self) -> None:
        for reference in self._submitted:
            ray.cancel(reference, force=True)


def _check_node_size(spec: ExecutorSpec, *, may_grow: bool) -> None:
    """Raise if no node can hold a run; if larger nodes may still join, warn instead."""
    wanted = {"CPU": spec.cpus, "GPU": spec.gpus, **spec.resources}
    known: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [node["Resources"] for node in known if node["Alive"]]
    if any(all(node.get(k, 0) >= count for k, count in wanted.items()) for node in nodes):
        return
    largest = max(nodes, key=lambda node: [node.get(name, 0) for name in reversed(wanted)])
    message = (
        "executor: no node of the Ray cluster can run a task that needs "
        f"{_list_resources(wanted, wanted)}; the largest has {_list_resources(largest, wanted)}."
    )
    if not may_grow:
        cure = "Request less in cpus, gpus and resources, or set address to another cluster."
        raise UsageError(message, cure=cure)
    warnings.warn(f"{message} Runs wait until such a node joins.", stacklevel=2)


def _list_resources(resources: Mapping[str, float], names: Mapping[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in names)


def _started_cluster(context: object) -> bool:
    """Return whether ``ray.init`` started the cluster: then its session ends with this process's ID."""
    session = str((getattr(context, "address_info", None) or {}).get("session_dir"))
    return session.endswith(f"_{os.getpid()}")
