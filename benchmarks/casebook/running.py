"""Run instruments over cases: in parallel, each in its own process with a limit, and resumable."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

from benchmarks.casebook.cases import ROOT, Case, sample
from benchmarks.casebook.commands import ENVIRONMENT
from benchmarks.casebook.instruments import Instrument
from benchmarks.casebook.results import Ran, Result, load, ran_from_json

Job = tuple[Case, Instrument, Path]
LIMIT = 480.0  # seconds for one program under one instrument, on a busy machine


class Worker:
    """Runs one job at a time; its server is started when the first job needs it."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def run(self, case: Case, instrument: Instrument, path: Path) -> Ran:
        """Run the instrument on one program of the case."""
        job = {
            "program": str(path),
            "instrument": instrument.name,
            "packages": case.packages,
            "limit": LIMIT,
        }
        server = self._started_server()
        assert server.stdin is not None and server.stdout is not None  # noqa: PT018
        print(json.dumps(job), file=server.stdin, flush=True)
        line = server.stdout.readline()
        if not line:
            raise RuntimeError(f"The server ended at {path}: see its output above.")
        return ran_from_json(json.loads(line))

    def _started_server(self) -> subprocess.Popen[str]:
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.casebook.server"],
                cwd=ROOT, env=os.environ | ENVIRONMENT, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        return self._server

    def close(self) -> None:
        if self._server is not None:
            self._server.communicate()  # closes its input, which ends it, and its output


def missing(cases: list[Case], instruments: list[Instrument], out: Path) -> list[Job]:
    """Return the programs without a result in the folder.

    Cases come in the order of a hash of their names, so that a run that is cut short has seen a fair sample.
    """
    jobs = []
    for case in sample(cases, len(cases)):
        for instrument in instruments:
            known = known_result(case, instrument, out)
            if known.reason:
                known.save(out)
                continue
            done = {
                name for name, ran in known.programs.items() if ran.ended != "instrument failed"
            }
            jobs += [(case, instrument, path) for path in case.programs if path.stem not in done]
    return jobs


def known_result(case: Case, instrument: Instrument, out: Path) -> Result:
    """Return what the folder has about the present programs."""
    known = load(out, case.name, instrument.name)
    if known is None or known.digest != case.digest:
        reason = instrument.reason_against(case)
        return Result(case.name, instrument.name, case.digest, {}, reason)
    return known


def run_all(jobs: list[Job], out: Path, *, workers: int) -> None:
    """Run the jobs and write the file of each as soon as it is done."""
    run_on_source(jobs, out)
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        if job[1].on_source is None:
            waiting.put(job)
    failures: list[BaseException] = []
    writing = threading.Lock()

    def work() -> None:
        worker = Worker()
        try:
            while not failures:
                case, instrument, path = waiting.get_nowait()
                ran = worker.run(case, instrument, path)
                with writing:
                    add(case, instrument, path, ran, out)
                tell(case, instrument, path, ran, waiting.qsize())
        except queue.Empty:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            failures.append(error)
        finally:
            worker.close()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def run_on_source(jobs: list[Job], out: Path) -> None:
    """Run those instruments that only read programs, each on all programs at once."""
    for instrument in dict.fromkeys(job[1] for job in jobs):
        own = [job for job in jobs if job[1] is instrument]
        if instrument.on_source is not None:
            for job, ran in zip(own, instrument.on_source([job[2] for job in own]), strict=True):
                add(*job, ran, out)


def add(case: Case, instrument: Instrument, path: Path, ran: Ran, out: Path) -> None:
    known = known_result(case, instrument, out)
    replace(known, programs=known.programs | {path.stem: ran}).save(out)


def tell(case: Case, instrument: Instrument, path: Path, ran: Ran, left: int) -> None:
    said = " ".join(alarm.code for alarm in ran.alarms) or "silent"
    print(
        f"{left:4} left  {instrument.name} {case.name} {path.stem}: {said} ({ran.ended}, {ran.seconds} s)",
        flush=True,
    )
