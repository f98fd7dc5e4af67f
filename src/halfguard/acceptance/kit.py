"""Run every check on one device and make the record. A check that raises has failed; the others still run."""

from __future__ import annotations

import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Protocol

import torch

from halfguard.acceptance import (
    autocast,
    cost,
    faults,
    healthy,
    host_syncs,
    incidents,
    kernels,
    lockstep,
    memory,
)
from halfguard.acceptance.device_facts import (
    count_devices,
    device_memory,
    device_name,
    read_system,
    read_versions,
)
from halfguard.acceptance.setting import FULL, SMALL, Cases, NotRunError, Setting
from halfguard.errors import UsageError
from halfguard.hardware.reading import read_machine
from halfguard.records.acceptance import (
    AcceptanceCase,
    AcceptanceCheck,
    AcceptanceRecord,
    Status,
)


class Check(Protocol):
    """A module with one check."""

    NAME: str
    CLAIM: str

    def run(self, setting: Setting) -> Cases:
        """Yield the cases of the check."""
        ...


CHECKS: tuple[Check, ...] = (
    autocast,
    kernels,
    healthy,
    host_syncs,
    faults,
    incidents,
    cost,
    memory,
    lockstep,
)


def run_acceptance(
    device: str | None = None,
    *,
    size: Literal["full", "small"] = "full",
    checks: Sequence[Check] = CHECKS,
    begin: Callable[[str], None] = lambda _: None,
) -> AcceptanceRecord:
    """Run the checks on a device, by default the accelerator; ``begin`` is called with each check's name."""
    chosen, started, results = choose_device(device), time.perf_counter(), list[AcceptanceCheck]()
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        for check in checks:
            begin(check.NAME)
            own = Path(folder, check.NAME.replace(" ", "-"))
            own.mkdir()
            setting = Setting(chosen, FULL if size == "full" else SMALL, own)
            results.append(_run_check(check, setting))
    machine = read_machine(torch)
    return AcceptanceRecord(
        date=datetime.now(UTC).date().isoformat(),
        device=chosen.type,
        device_name=device_name(chosen, machine),
        device_count=count_devices(chosen),
        capability=next((d.target or "" for d in machine.devices), ""),
        memory=device_memory(chosen, machine),
        system=read_system(),
        driver=machine.driver or "",
        versions=read_versions(),
        size=size,
        checks=tuple(results),
        seconds=time.perf_counter() - started,
    )


def choose_device(name: str | None) -> torch.device:
    """Return the named device or the accelerator, else the CPU; raise if torch cannot use it."""
    if name is None:
        found = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if found is None else found
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(
            f"torch cannot use the device {name!r}: {reason}",
            cure="Run: halfguard doctor, which shows the devices of this machine and what is missing.",
        ) from error
    return device


def _run_check(check: Check, setting: Setting) -> AcceptanceCheck:
    started, cases, reason = time.perf_counter(), list[AcceptanceCase](), ""
    status: Status = "passed"
    try:
        cases.extend(check.run(setting))
    except NotRunError as error:
        status, reason = "not run", str(error)
    except Exception as error:  # noqa: BLE001 - a device may fail in any way, and the record says how
        status, reason = "failed", _describe(error)
    if status == "passed":
        status, reason = _conclude(cases)
    return AcceptanceCheck(
        name=check.NAME,
        claim=check.CLAIM,
        status=status,
        reason=reason,
        cases=tuple(cases),
        seconds=time.perf_counter() - started,
    )


def _conclude(cases: Sequence[AcceptanceCase]) -> tuple[Status, str]:
    """Return the status of a check from its cases, and what to know about it."""
    failed = [case for case in cases if case.status == "failed"]
    left_out = [case for case in cases if case.status == "not run"]
    if failed:
        count = f"{len(failed)} of {len(cases)} cases failed"
        return "failed", f"{count}. {failed[0].name}: {failed[0].detail}."
    if left_out:
        names = ", ".join(case.name for case in left_out[:8])
        reason = (
            f"{len(left_out)} of {len(cases)} cases were not run: {names}. {left_out[0].detail}."
        )
        return "not run" if len(left_out) == len(cases) else "passed", reason
    return "passed", ""


def _describe(error: Exception) -> str:
    """Return an error in one line, without the names of folders: the record is sent to others."""
    text = (str(error).strip().splitlines() or [""])[0]
    text = text.replace(tempfile.gettempdir(), "(temporary)").replace(str(Path.home()), "~")
    return f"{type(error).__name__}: {text}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the guard logs about planted faults; ask for deterministic kernels of cuBLAS.

    One thread on the host: its tensors are small, and threads that wait for each other are slower.
    """
    logger, name = logging.getLogger("halfguard"), "CUBLAS_WORKSPACE_CONFIG"
    level, before, threads = logger.level, os.environ.get(name), torch.get_num_threads()
    torch.set_num_threads(1)
    logger.setLevel(logging.CRITICAL)
    os.environ.setdefault(name, ":4096:8")  # read when CUDA's first matrix product runs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        torch.set_num_threads(threads)
        if before is None:
            os.environ.pop(name, None)
