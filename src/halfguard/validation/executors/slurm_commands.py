"""Slurm's own commands, run without a shell: submit a job, list jobs, cancel jobs.

``squeue`` and not ``sacct`` tells a job's state: it works on clusters without an accounting database, and
lists a job for some minutes after it has ended.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from halfguard.errors import HalfguardError, UsageError

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
