"""Jobs of Slurm and their files.

Slurm's own commands are run without a shell: submit a job, list jobs, cancel jobs. ``squeue`` and not
``sacct`` tells a job's state: it works on clusters without an accounting database, and lists a job for some
minutes after it has ended.

Job and study exchange nothing but files: ``KEY.request.json``, ``KEY.reply.json``, ``KEY.JOB.log``. Both JSON
files are written atomically: a reply is complete or absent.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from halfguard.errors import HalfguardError, UsageError
from halfguard.records.atomic_write import write_atomically
from halfguard.validation.executors.worker import TaskReply, TaskRequest
from halfguard.validation.runs.commands import last_line
from halfguard.validation.runs.task import Task

_COMMANDS = ("sbatch", "squeue", "scancel", "scontrol")
_ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "REVOKED", "SPECIAL_EXIT", "TIMEOUT",
}  # fmt: skip
_SECONDS = 60.0  # a busy controller answers late, and one that is restarted not at all


class SlurmError(HalfguardError):
    """A Slurm command failed; the message has its own words."""


@dataclass(frozen=True)
class Job:
    """A line of ``squeue``."""

    job_id: str
    state: str
    elapsed: str
    name: str

    @property
    def ended(self) -> bool:
        return self.state in _ENDED

    @property
    def alive(self) -> bool:
        """Return whether it will still run; a job that is being cleaned up will not."""
        return not self.ended and self.state != "COMPLETING"


def require_slurm() -> None:
    """Raise if this machine has no Slurm commands."""
    missing = [name for name in _COMMANDS if shutil.which(name) is None]
    if missing:
        raise UsageError(
            f"executor: slurm runs the commands {', '.join(_COMMANDS)}, and this machine has no "
            f"{' and no '.join(missing)} on its PATH.",
            cure="Start the study on a login node of the Slurm cluster, or run it on this machine: "
            "--executor local.",
        )


def submit_job(folder: Path, name: str, options: Sequence[str], request: Path) -> str:
    """Submit a job that carries out the ``request`` in ``folder``; return its ID.

    Slurm must not requeue it by itself: attempts are counted where results are collected.
    """
    worker = [sys.executable, "-P", "-m", "halfguard.validation.executors.worker", str(request)]
    own = [f"--chdir={folder}", f"--job-name={name}", f"--output={name}.%j.log", "--no-requeue"]
    script = f"--wrap=exec {shlex.join(worker)}"
    printed = _run("sbatch", "--parsable", *options, *own, script)
    return printed.strip().partition(";")[0]  # with several clusters: ID;CLUSTER


def list_jobs(folder: Path) -> list[Job]:
    """Return this user's jobs that were submitted with ``folder`` as their working directory."""
    printed = _run("squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%M|%j|%Z")
    fields = (line.split("|", 4) for line in printed.splitlines() if line.count("|") >= 4)
    return [Job(*parts[:4]) for parts in fields if parts[4].strip() == str(folder)]


def exit_code(job_id: str) -> str:
    """Return how the processes of a job ended, as the end of a sentence; empty if Slurm does not know."""
    try:
        printed = _run("scontrol", "--oneliner", "show", "job", job_id)
    except SlurmError:
        return ""
    found = re.search(r" ExitCode=(\d+):(\d+)", printed)
    if found is None:
        return ""
    return f" with signal {found[2]}" if found[2] != "0" else f" with exit code {found[1]}"


def cancel_jobs(job_ids: Iterable[str]) -> None:
    """Cancel jobs; those that have ended meanwhile do no harm."""
    if listed := list(job_ids):
        # Not checked: there is nobody to whom it could be told, and the next start finds living jobs.
        subprocess.run(["scancel", *listed], capture_output=True, check=False)  # noqa: S603, S607


def _run(command: str, *arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - Slurm's commands, without a shell
            [command, *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{command} gave no answer in {_SECONDS:.0f} s.") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip() or f"exit code {error.returncode}"
        raise SlurmError(f"{command} failed: {said}.") from error
    return done.stdout


class RunFiles:
    """The files of all runs of one study, in one folder that every node shares."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"Cannot create the folder {str(folder)!r}: {error}.") from error

    def write_request(self, key: str, task: Task, attempt: int) -> Path:
        path, reply = self._path(key, "request"), str(self._path(key, "reply"))
        request = TaskRequest(task=task.model_dump_json(), attempt=attempt, reply=reply)
        write_atomically(path, request.model_dump_json())
        return path

    def requested_attempt(self, key: str) -> int:
        """Return the attempt in the last request."""
        try:
            text = self._path(key, "request").read_bytes()
            return TaskRequest.model_validate_json(text).attempt
        except (OSError, ValueError):
            return 1

    def replied(self) -> set[str]:
        """Return the keys of the runs with a reply."""
        return {path.name.partition(".")[0] for path in self.folder.glob("[!.]*.reply.json")}

    def read_reply(self, key: str) -> TaskReply | None:
        """Return the reply; delete a damaged one and return None, so that the run is repeated."""
        path = self._path(key, "reply")
        try:
            return TaskReply.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            path.unlink(missing_ok=True)
            return None

    def last_log_line(self, key: str, job_id: str) -> str:
        try:
            return last_line(self.folder / f"{key}.{job_id}.log")
        except OSError:
            return (
                f"it left no log in {self.folder}; every node must have this folder under this path"
            )

    def delete(self, key: str) -> None:
        for path in self.folder.glob(f"{key}.*"):
            path.unlink(missing_ok=True)

    def delete_others(self, keys: Collection[str]) -> None:
        """Delete the files of runs that are not in ``keys``."""
        for path in self.folder.glob("[!.]*"):
            if path.name.partition(".")[0] not in keys:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete what killed jobs left half written, and the folder if nothing else is in it."""
        for path in self.folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _path(self, key: str, kind: str) -> Path:
        return self.folder / f"{key}.{kind}.json"
