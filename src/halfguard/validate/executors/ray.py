"""Runs as Ray tasks: Ray knows the nodes, their processors and accelerators, and places a run on one.

Each task gets a worker process of its own (``max_calls=1``), like a local one. Ray is told not to retry:
its retries would not be counted, and a finished run whose result was on a lost node would be run again
behind the ledger's back. A run whose node died is submitted anew, here, where attempts are counted.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from halfguard.errors import HalfguardError, MissingExtraError
from halfguard.validate.executors import ATTEMPTS, lost, may_begin
from halfguard.validate.executors.worker import Answer, execute
from halfguard.validate.ledger import Result, parse
from halfguard.validate.runs.task import Task
from halfguard.validate.sections import ExecutorSpec

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ModuleNotFoundError as error:
    raise MissingExtraError("executor: ray", "ray") from error

_POLL = 1.0


class RayExecutor:
    """Uses the cluster at ``address``, or one that is connected already, or starts one here."""

    def __init__(self, spec: ExecutorSpec) -> None:
        self.spec = spec

    def run(self, tasks: Sequence[Task], *, deadline: float) -> Generator[tuple[Task, Result]]:
        """See ``Executor``."""
        started = not ray.is_initialized()
        if started:
            ray.init(address=self.spec.address, log_to_driver=False, include_dashboard=False)
        flight = _Flight(self._remote(), list(tasks), self.spec.workers)
        try:
            while flight.fill() and time.monotonic() < deadline:
                yield from flight.landed()
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
            scheduling_strategy="SPREAD",
        )(execute)


class _Flight:
    """The tasks that Ray has, and those that it shall have."""

    def __init__(self, remote: Any, tasks: list[Task], limit: int | None) -> None:
        self._remote, self._limit = remote, limit or len(tasks)
        self._waiting = [(task, 1) for task in reversed(tasks)]
        self._flying: dict[Any, tuple[Task, int]] = {}

    def fill(self) -> bool:
        """Submit what may be; false when there is nothing left to wait for."""
        while self._waiting and len(self._flying) < self._limit:
            task, attempt = self._waiting[-1]
            if not may_begin(task, [other for other, _ in self._flying.values()]):
                break
            self._waiting.pop()
            self._flying[self._remote.remote(task.model_dump_json(), attempt)] = (task, attempt)
        return bool(self._flying)

    def landed(self) -> Iterator[tuple[Task, Result]]:
        """Results that have come in, after at most a second."""
        ready, _ = ray.wait(list(self._flying), timeout=_POLL)
        for reference in ready:
            task, attempt = self._flying.pop(reference)
            try:
                answer = ray.get(reference)
            except RayTaskError as error:
                raise HalfguardError(f"The run {task.key} broke: {error}.") from error
            except RayError as error:  # the worker, its node or its memory is gone
                if attempt < ATTEMPTS:
                    self._waiting.append((task, attempt + 1))
                else:
                    yield task, lost(task, type(error).__name__)
                continue
            yield task, parse(task, Answer.model_validate_json(answer).take())

    def cancel(self) -> None:
        """Stop what is under way."""
        for reference in self._flying:
            ray.cancel(reference, force=True)
