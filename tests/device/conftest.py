"""Run the promises of halfguard on one device, and write down what held there.

``pytest tests/device --device cuda --full --record device.json``. Most tests here are those of other
folders, imported: there they run on the CPU and on the stand-in, here on the device that ``--device`` names.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from halfguard.hardware.reading import read_machine
from tests.support import devices, standin
from tests.support.models import MODELS, OPTIMIZERS, bare_step, batches, differences, make

FOLDER = Path(__file__).parent
SAMPLE = 4  # tests of each function, without --full


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tests/device")
    group.addoption("--device", default="cpu", help="device to check: cpu, cuda, standin, ...")
    group.addoption("--full", action="store_true", help="all tests of tests/device, not a sample")
    group.addoption("--record", type=Path, help="write the counts of each check to this file")


def pytest_configure(config: pytest.Config) -> None:
    name = _device_name(config)
    if name.startswith("cuda"):  # read when the first matrix product runs
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if name == standin.NAME:
        standin.prepare()  # before the first backward pass
    else:
        try:
            torch.empty(1, device=name)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise pytest.UsageError(f"torch cannot use {name!r}: {_first_line(error)}") from error
    if config.getoption("record", None) is not None:
        config.pluginmanager.register(Record(config))


def _device_name(config: pytest.Config) -> str:
    return str(config.getoption("device", "cpu"))  # not yet an option if the whole suite runs


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Run the test on the device that was named."""
    with devices.running_on(_device_name(request.config), request.node) as chosen:
        yield chosen


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a few tests of each function, always the same ones, unless all are asked for."""
    families: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.path.is_relative_to(FOLDER):
            families[item.nodeid.partition("[")[0]].append(item)
            item.add_marker(pytest.mark.filterwarnings("ignore:.*deterministic"))
    if config.getoption("full", False):
        return
    left_out: set[pytest.Item] = set()
    for family in families.values():
        left_out.update(sorted(family, key=lambda i: zlib.crc32(i.nodeid.encode()))[SAMPLE:])
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skip what the device has no kernel for. CUDA has all of them."""
    try:
        return (yield)
    except NotImplementedError as error:
        if _device_name(item.config).startswith("cuda"):
            raise
        pytest.skip(f"no kernel: {_first_line(error).partition('. ')[0]}")


@pytest.fixture(autouse=True)
def deterministic(device: torch.device) -> Iterator[None]:
    """Ask for kernels that repeat themselves bit for bit, where the device has them."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    torch.use_deterministic_algorithms(device.type != "cpu", warn_only=True)
    cudnn.deterministic, cudnn.benchmark = True, False
    yield
    torch.use_deterministic_algorithms(False)
    cudnn.deterministic, cudnn.benchmark = before


@pytest.fixture
def repeatable(device: torch.device, seed: Callable[[int], None]) -> None:
    """Skip a comparison bit by bit if the bare loop does not repeat itself here: it would prove nothing."""
    if not _repeats(str(device)):
        pytest.skip("two runs of the bare loop differ on this device")


@functools.cache
def _repeats(device: str) -> bool:
    ends = []
    for _ in range(2):
        torch.manual_seed(3)
        for name in MODELS:
            model = make(name)
            optimizer = OPTIMIZERS["adamw-fused"](model.parameters())
            scaler = torch.amp.GradScaler(torch.device(device).type, init_scale=64.0)
            for batch in batches(8):
                bare_step(model, optimizer, scaler, [batch], max_norm=1.0)
            ends.append(model.state_dict())
    return not differences(ends[: len(MODELS)], ends[len(MODELS) :])


# -- the record


class Record:
    """Counts what passed, failed and was unsupported in each check: each file here is one."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.failed: list[str] = []
        self.unsupported: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and report.when != "call":
            return
        file, _, name = report.nodeid.partition("::")
        check = Path(file).stem.removeprefix("test_")
        self.counts[check]["unsupported" if report.skipped else report.outcome] += 1
        if report.failed:
            self.failed.append(f"{check}: {name}")
        elif isinstance(report.longrepr, tuple):  # of a skip: the file, the line and the reason
            self.unsupported[f"{check}: {report.longrepr[2].removeprefix('Skipped: ')}"] += 1

    def pytest_sessionfinish(self) -> None:
        path: Path = self.config.getoption("record")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_dict(), indent=1) + "\n")

    def as_dict(self) -> dict[str, Any]:
        """Return the record: names of hardware, versions and counts, and nothing about the user."""
        machine, device = read_machine(torch), _device_name(self.config)
        names = [found.name for found in machine.devices]
        return {
            "date": datetime.now(UTC).date().isoformat(),
            "device": device,
            "device_name": names[0] if names and device != "cpu" else machine.processor.name,
            "system": f"{platform.system()} {platform.machine()}",
            "driver": machine.driver or "",
            "versions": _versions(),
            "full": self.config.getoption("full"),
            "checks": {
                check: {kind: counts[kind] for kind in ("passed", "failed", "unsupported")}
                for check, counts in sorted(self.counts.items())
            },
            "failed": self.failed,
            "unsupported": dict(self.unsupported),
        }


def _versions() -> dict[str, Any]:
    found = {
        "halfguard": metadata.version("halfguard"),
        "Python": platform.python_version(),
        "torch": str(torch.__version__),
        "CUDA": torch.version.cuda,
        "ROCm": torch.version.hip,
    }
    return {name: version for name, version in found.items() if version is not None}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
