"""Run programs, each in a process of its own: a process that has imported torch forks for every job.

A job is one line of JSON on stdin, its answer one line on stdout. Frameworks are imported when the first
program needs them, so that a case costs what the program costs, not ten seconds of imports.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

MODULES = {
    "lightning": ["lightning.pytorch"],
    "transformers": ["transformers.trainer"],
    "accelerate": ["accelerate"],
    "peft": ["peft"],
    "trl": ["trl", "trl.trainer.sft_trainer"],
}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what imports print is no answer
    import torch._dynamo  # noqa: F401 - the first optimizer of a process imports it, which takes seconds

    import benchmarks.casebook.inside.ours
    import benchmarks.casebook.inside.peers
    import benchmarks.casebook.inside.why  # noqa: F401

    for line in sys.stdin:
        job = json.loads(line)
        for package in job["packages"]:
            for module in MODULES[package]:
                importlib.import_module(module)
        print(json.dumps(run_job(job)), file=answers, flush=True)


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Fork, run one program under one instrument, and return what it left."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        answer = place / "answer.json"
        (place / "work").mkdir()
        child = os.fork()
        if child == 0:
            run_child(job, place, answer)
        _, status = os.waitpid(child, 0)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # ranks and workers that it left behind
        seconds = round(time.monotonic() - began, 1)
        if answer.exists():
            told: dict[str, Any] = json.loads(answer.read_text("utf-8"))
            return told | {"seconds": seconds}
        log = (place / "log").read_text("utf-8", errors="replace")[-600:]
    late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
    ended = "out of time" if late else "instrument failed"
    return {"alarms": [], "ended": ended, "error": log, "seconds": seconds, "facts": {}}


def run_child(job: dict[str, Any], place: Path, answer: Path) -> None:
    """Run the program in this process, a fork, and leave it for good."""
    code = 1
    try:
        os.setsid()
        signal.alarm(int(job["limit"]))  # ends the process, whatever it does
        log = os.open(place / "log", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = os.fdopen(1, "w", buffering=1)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        os.chdir(place / "work")
        result = observe(job, place / "log")
        part = answer.with_suffix(".part")
        part.write_text(json.dumps(result), "utf-8")
        part.replace(answer)
        code = 0
    except BaseException:  # noqa: BLE001 - the log tells what it was
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def observe(job: dict[str, Any], log: Path) -> dict[str, Any]:
    from benchmarks.casebook.inside import ours, peers, why
    from benchmarks.casebook.inside.running import Program

    program = Program(Path(job["program"]), log)
    alarms = {**vars(peers), **vars(ours), "why": why.why}[job["instrument"]](program)
    return {
        "alarms": [asdict(alarm) for alarm in alarms],
        "ended": "finished" if program.error is None else "error",
        "error": "" if program.error is None else repr(program.error)[:300],
        "facts": program.facts,
    }


if __name__ == "__main__":
    main()
