"""Runs as Slurm jobs, one job for each attempt of a run.

A job is a plain command line. It reads its request from a JSON file in the study's folder, which all nodes
must share, and writes its reply there: nothing is pickled, and nothing but Slurm itself is needed.

submitit cannot keep these promises. It pickles in both directions. It learns the state of a job from
``sacct`` only: without an accounting database, a killed task is never done and ``wait`` has no end. It does
not find the jobs of a process that was killed. Only ``sbatch`` could be left to it.

The reply counts, not the state of the job: a node that Slurm gave up may still finish its run, and the first
reply is taken. A job that has ended without a reply has died, and its run is submitted again.

Jobs go on if the study's process is killed. The next start finds them by their working directory, which is
the folder of those files, and by their name, the run's key. It takes the replies that have come, waits for
the jobs that are alive, and submits only the rest.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from halfguard.errors import HalfguardError, UsageError
from halfguard.validation.executors import MAX_ATTEMPTS, lost_result, may_start, timed_out_result
from halfguard.validation.executors.slurm_jobs import (
    Job,
    RunFiles,
    SlurmError,
    cancel_jobs,
    exit_code,
    list_jobs,
    require_slurm,
    submit_job,
)
from halfguard.validation.finished_runs import Result, parse_result
from halfguard.validation.runs.task import Task
from halfguard.validation.spec import ExecutorSpec

_POLL = 1.0  # seconds between two looks at the folder of replies
_SLURM_POLL = 10.0  # and between two questions to Slurm's controller, which all users share
_SILENCE = 600.0  # seconds without an answer from the controller, which may have been restarted
_FILE_DELAY = 60.0  # a network file system may show a reply later than Slurm shows the job's end


def make_executor(spec: ExecutorSpec, folder: Path) -> SlurmExecutor:
    """Create the executor of a specification of this kind."""
    return SlurmExecutor(spec, folder)


class SlurmExecutor:
    """Submits jobs with ``sbatch``; ``folder`` is the study's, and every node must share it."""

    def __init__(self, spec: ExecutorSpec, folder: Path) -> None:
        require_slurm()
        self.spec, self.folder = spec, folder.resolve() / "slurm"

    def run(self, tasks: Sequence[Task], *, deadline: float) -> Generator[tuple[Task, Result]]:
        queue = _SlurmQueue(self.spec, RunFiles(self.folder), tasks)
        queue.ask_slurm()
        try:
            yield from queue.collect()
            while time.monotonic() < deadline:
                queue.submit()
                if not queue.submitted:
                    return
                time.sleep(min(_POLL, max(0.0, deadline - time.monotonic())))
                queue.ask_slurm(at_most_every=_SLURM_POLL)
                yield from queue.collect()
            queue.ask_slurm()
            yield from queue.collect()
            yield from queue.timed_out()
        finally:
            queue.close()


@dataclass
class _Submitted:
    """A run that was submitted, and the last that Slurm told about its job."""

    key: str
    attempt: int
    job: Job | None = None  # None before the first answer, and if Slurm no longer lists it
    ended_at: float | None = None

    def update(self, job: Job | None) -> None:
        self.job = job
        if job is not None and not job.ended:
            self.ended_at = None
        elif self.ended_at is None:
            self.ended_at = time.monotonic()

    @property
    def died(self) -> bool:
        """Return whether the job has died, if there is no reply by now."""
        if self.ended_at is None:
            return False
        may_have_replied = self.job is None or self.job.state == "COMPLETED"
        return not may_have_replied or time.monotonic() - self.ended_at > _FILE_DELAY


class _SlurmQueue:
    """Runs that were submitted to Slurm, by job ID, and runs that wait to be submitted."""

    def __init__(self, spec: ExecutorSpec, files: RunFiles, tasks: Sequence[Task]) -> None:
        self.submitted: dict[str, _Submitted] = {}
        self._files = files
        self._options, self._limit = _sbatch_options(spec), spec.workers or len(tasks)
        self._unfinished = {task.key: task for task in tasks}
        self._waiting = [(key, 1) for key in reversed(self._unfinished)]
        self._past_jobs: set[str] = set()
        self._asked = self._answered = time.monotonic()
        self._refused = self._unreachable = False
        files.delete_others(self._unfinished)

    def ask_slurm(self, at_most_every: float = 0.0) -> None:
        """Update the state of all jobs, and adopt jobs that an earlier start has left."""
        now = time.monotonic()
        if now - self._asked < at_most_every:
            return
        self._asked = now
        try:
            listed = {job.job_id: job for job in list_jobs(self._files.folder)}
        except SlurmError as error:
            if not self.submitted or now - self._answered > _SILENCE:
                self._unreachable = True
                raise _no_answer(error) from error
            return
        self._answered, self._refused = now, False
        for job_id, submitted in self.submitted.items():
            submitted.update(listed.pop(job_id, None))
        self._adopt([job for job_id, job in listed.items() if job_id not in self._past_jobs])

    def _adopt(self, jobs: Sequence[Job]) -> None:
        """Take over living jobs of waiting runs, from an earlier start or an sbatch that failed late.

        Cancel the others: nobody asks for their runs any more, for example since the job's file was changed.
        """
        waiting = {key for key, _ in self._waiting}
        others = []
        for job in jobs:
            if not job.alive:
                continue
            if job.name in waiting:
                waiting.remove(job.name)
                attempt = self._files.requested_attempt(job.name)
                self.submitted[job.job_id] = _Submitted(job.name, attempt, job)
            else:
                others.append(job.job_id)
        self._waiting = [entry for entry in self._waiting if entry[0] in waiting]
        cancel_jobs(others)

    def submit(self) -> None:
        """Submit as many runs as allowed; if Slurm takes no more, the rest is tried again later."""
        while self._waiting and len(self.submitted) < self._limit and not self._refused:
            key, attempt = self._waiting[-1]
            task = self._unfinished[key]
            running = [self._unfinished[other.key] for other in self.submitted.values()]
            if not may_start(task, running):
                return
            request = self._files.write_request(key, task, attempt)
            try:
                job_id = submit_job(self._files.folder, key, self._options, request)
            except SlurmError as error:
                if not self.submitted:
                    raise _not_accepted(key, error) from error
                self._refused = True  # until Slurm is asked the next time
                return
            self._waiting.pop()
            self.submitted[job_id] = _Submitted(key, attempt)

    def collect(self) -> Iterator[tuple[Task, Result]]:
        """Yield all runs with a reply; put runs whose job died back, or yield them as lost.

        Slurm was asked before. So if a job was listed as ended, its reply is found here.
        """
        replied = self._files.replied()
        for key in [key for key in self._unfinished if key in replied]:
            yield from self._take_reply(key)
        for job_id, submitted in list(self.submitted.items()):
            if not submitted.died:
                continue
            key = submitted.key
            del self.submitted[job_id]
            self._past_jobs.add(job_id)
            if submitted.attempt < MAX_ATTEMPTS:
                self._waiting.append((key, submitted.attempt + 1))
                continue
            task = self._unfinished.pop(key)
            yield task, lost_result(task, self._exit_text(job_id, submitted))
            self._files.delete(key)

    def _take_reply(self, key: str) -> Iterator[tuple[Task, Result]]:
        reply = self._files.read_reply(key)
        if reply is None:
            return
        self._stop_waiting(key)
        task = self._unfinished.pop(key)
        if reply.error:
            self._files.delete(key)  # the next start must not find it again
        yield task, parse_result(task, reply.result_or_raise())
        self._files.delete(key)  # only after the study has stored the result

    def _stop_waiting(self, key: str) -> None:
        """Forget the job of a run that has a reply, and cancel a second job of it."""
        self._waiting = [entry for entry in self._waiting if entry[0] != key]
        for job_id, submitted in list(self.submitted.items()):
            if submitted.key == key:
                del self.submitted[job_id]
                self._past_jobs.add(job_id)
                if submitted.attempt > 1:  # the reply may be from an earlier attempt
                    cancel_jobs([job_id])

    def timed_out(self) -> Iterator[tuple[Task, Result]]:
        """Yield results for runs that have started and not ended."""
        for submitted in self.submitted.values():
            task = self._unfinished[submitted.key]
            attempt, job = submitted.attempt, submitted.job
            if job is not None and job.state != "PENDING":
                state = f"its Slurm job was {job.state} after {job.elapsed}"
                yield task, timed_out_result(task, attempt, state)
            elif attempt > 1:
                yield task, timed_out_result(task, attempt - 1, "its worker had died")
        for key, attempt in self._waiting:
            if attempt > 1:
                task = self._unfinished[key]
                yield task, timed_out_result(task, attempt - 1, "its worker had died")

    def close(self) -> None:
        """Cancel all jobs and delete their files, but no reply that nobody has read yet.

        If Slurm does not answer, jobs cannot be cancelled: they go on, and the next start finds them.
        """
        if self._unreachable:
            return
        cancel_jobs(self.submitted)
        replied = self._files.replied()
        for key in self._unfinished.keys() - replied:
            self._files.delete(key)
        self._files.close()

    def _exit_text(self, job_id: str, submitted: _Submitted) -> str:
        job, line = submitted.job, self._files.last_log_line(submitted.key, job_id)
        state = "Slurm no longer lists its job" if job is None else job.state + exit_code(job_id)
        return f"{state}: {line}" if line else state


def _sbatch_options(spec: ExecutorSpec) -> list[str]:
    """Return one run's resources as options of sbatch; the user's own options come last and win."""
    for name, count in (("cpus", spec.cpus), ("gpus", spec.gpus)):
        if count != int(count):
            raise UsageError(
                f"executor: Slurm gives whole processors and accelerators, not {name}: {count:g}.",
                cure=f"Set {name} to a whole number.",
            )
    cpus = [f"--cpus-per-task={spec.cpus:.0f}"] if spec.cpus else []
    gpus = [f"--gres=gpu:{spec.gpus:.0f}"] if spec.gpus else []
    return [*cpus, *gpus, *spec.options]


def _not_accepted(key: str, error: SlurmError) -> UsageError:
    return UsageError(
        f"executor: Slurm did not accept the run {key}. {error.message}",
        cure="Correct cpus, gpus and options of the executor; sinfo lists what the cluster has.",
    )


def _no_answer(error: SlurmError) -> HalfguardError:
    return HalfguardError(
        f"Slurm does not answer. {error.message}",
        cure="When it does, start the same command again: finished runs are kept, and jobs that are still "
        "running are waited for.",
    )
