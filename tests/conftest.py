"""Keep tests independent of each other: within one process, and beside tests in other processes."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import shutil
import subprocess
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

# One thread, also in the processes that tests start: the tensors here are tiny, and threads that wait for
# each other on a busy machine make such tests ten times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Seconds that a Ray node may take to start. Ray's default, 30, is too short on a busy machine.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
# Ray's workers are nice by default: beside other tests they would hardly run.
os.environ.setdefault("RAY_worker_niceness", "0")

import pytest
import torch
from hypothesis import settings

from tests.support import devices, standin
from tests.support.forks import share_forks
from tests.support.processor_time import ProcessorTime
from tests.support.turns import Turns

# No deadlines: the machine may be busy. CI draws the same examples in every run, so that what fails there is
# the change's own doing; other runs draw new ones, and `scripts/soak laws` many.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)

_TURNS = pytest.StashKey[Turns]()
_FAMILY = 12  # tests of one function from which on --sample-families runs a third
_ALL_SLOW = re.compile(r"^pytestmark = (\[[^\]]*)?pytest\.mark\.slow", re.MULTILINE)

# Set by pytest, by torch when its first dispatch mode is entered, and by importing Lightning.
_NOT_OURS = (
    "PYTEST_CURRENT_TEST",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TORCHINDUCTOR_CACHE_DIR",
)


def pytest_configure(config: pytest.Config) -> None:
    # Ray joins a running cluster that it finds in its folder, so each process has a folder of its own. Its
    # name is short: Ray's sockets are in there, and the system limits the length of their paths.
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="hg-")
    config.add_cleanup(functools.partial(shutil.rmtree, os.environ["RAY_TMPDIR"], True))
    config.pluginmanager.register(ProcessorTime(config))
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist
        config.stash[_TURNS] = turns = Turns(Path(config.workerinput["turns"]))
        config.add_cleanup(turns.close)
    else:
        config.add_cleanup(share_forks())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker which file it shares with the others."""
    node.workerinput["turns"] = str(Path(os.environ["RAY_TMPDIR"], "turns"))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside pytest-timeout: waiting does not count
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    turns = item.config.stash.get(_TURNS, None)
    alone = item.get_closest_marker("alone") is not None
    with turns.turn(alone=alone) if turns else contextlib.nullcontext():
        return (yield)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample-cells", action="store_true", help="run a third of slow tests with parameters"
    )
    parser.addoption(
        "--sample-families",
        action="store_true",
        help="run a third of tests with many parameter sets",
    )
    parser.addoption(
        "--sample-seed",
        default=_commit(),
        help="which third: by default, the commit decides, so that each test is run within a few commits",
    )
    parser.addoption(
        "--check-budget",
        action="store_true",
        help="print processor seconds per package; fail if one exceeds its budget",
    )


def _commit() -> str:
    """Return the hash of the commit that is checked out; a source archive has none."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.getoption("--sample-cells") or config.getoption("--sample-families"):
        return (
            f"a third of large families of tests: --sample-seed={config.getoption('--sample-seed')}"
        )
    return None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no module of slow tests alone if slow tests are not run: some import whole frameworks."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return True if _ALL_SLOW.search(collection_path.read_text()) else None


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests on the stand-in accelerator last.

    A process that has loaded the stand-in is not quite a machine without an accelerator any more.
    """
    if config.getoption("--sample-cells"):
        seed = config.getoption("--sample-seed")
        _deselect(config, items, {item for item in items if _is_left_out(item, seed)})
    if config.getoption("--sample-families"):
        _deselect(config, items, _rest_of_families(items, config.getoption("--sample-seed")))
    items.sort(key=lambda item: _device_of(item) == standin.NAME)


def _deselect(config: pytest.Config, items: list[pytest.Item], left_out: set[pytest.Item]) -> None:
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def _is_left_out(item: pytest.Item, seed: str) -> bool:
    """Leave out two of three slow tests with parameters."""
    marks = {name for name in ("slow", "all_cells") if item.get_closest_marker(name)}
    return marks == {"slow"} and bool(_params(item)) and not _in_sample(item, seed)


def _rest_of_families(items: Sequence[pytest.Item], seed: str) -> set[pytest.Item]:
    """Return two of three tests of each function with many parameter sets."""
    size = Counter(_function_of(item) for item in items)
    return {i for i in items if size[_function_of(i)] >= _FAMILY and not _in_sample(i, seed)}


def _function_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _in_sample(item: pytest.Item, seed: str) -> bool:
    """Put each test into one of three parts, and choose a part by the seed."""
    return (zlib.crc32(item.nodeid.encode()) + zlib.crc32(seed.encode())) % 3 == 0


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import the stand-in before the first backward pass, which starts a thread for each device."""
    if any(_device_of(item) == standin.NAME for item in session.items):
        standin.prepare()


def _device_of(item: pytest.Item) -> object:
    params = _params(item)
    return params.get("device", params.get("accelerator"))


def _params(item: pytest.Item) -> dict[str, object]:
    spec = getattr(item, "callspec", None)
    return {} if spec is None else spec.params


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test marked ``on_standin`` a second time, on the stand-in accelerator.

    In ``tests/device`` it runs on the device that an option names.
    """
    marked = metafunc.definition.get_closest_marker("on_standin") is not None
    if marked and metafunc.definition.path.parent.name != "device":
        names = [pytest.param("cpu", id=pytest.HIDDEN_PARAM), standin.NAME]
        metafunc.parametrize("device", names, indirect=True)


@pytest.fixture
def between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every guarded step be one of those between two looks, which are nearly all of a run."""
    step_state = import_module("halfguard.guard.stepping.step_state")
    monkeypatch.setattr(step_state.StepState, "_is_due", lambda state: state._module_count < 0)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Give the device of the test, on which the tensors that it makes lie: the CPU or the stand-in."""
    name = getattr(request, "param", "cpu")
    with devices.running_on(name, request.node) as chosen:
        yield chosen
    if name == standin.NAME and not standin.load().operations():
        pytest.fail("nothing ran on the device; the test needs no mark on_standin")


@pytest.fixture(params=[standin.NAME])
def accelerator(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Run the test on the stand-in accelerator alone; the value is ``torch.standin``."""
    devices.require(request.param)
    with devices.choosing(request.param):
        yield standin.load()


@dataclass(frozen=True)
class ProcessState:
    """What one test could leave behind for the next."""

    environment: dict[str, str]
    default_dtype: torch.dtype
    torch_rng: bytes
    python_rng: object
    threads: int
    deterministic: bool
    grad_enabled: bool

    @classmethod
    def now(cls) -> ProcessState:
        environment = {k: v for k, v in os.environ.items() if k not in _NOT_OURS}
        return cls(
            environment=environment,
            default_dtype=torch.get_default_dtype(),
            torch_rng=torch.get_rng_state().numpy().tobytes(),
            python_rng=random.getstate(),
            threads=torch.get_num_threads(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            grad_enabled=torch.is_grad_enabled(),
        )

    def leaks(self, later: ProcessState) -> list[str]:
        return [f.name for f in fields(self) if getattr(self, f.name) != getattr(later, f.name)]

    def restore(self) -> None:
        kept = {k: v for k, v in os.environ.items() if k in _NOT_OURS}
        os.environ.clear()
        os.environ.update(self.environment | kept)
        torch.set_default_dtype(self.default_dtype)
        torch.set_rng_state(torch.frombuffer(bytearray(self.torch_rng), dtype=torch.uint8))
        random.setstate(self.python_rng)  # type: ignore[arg-type]
        torch.set_num_threads(self.threads)
        torch.use_deterministic_algorithms(self.deterministic)
        torch.set_grad_enabled(self.grad_enabled)


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaks process state, and put the state back for those that follow."""
    before = ProcessState.now()
    yield
    leaked = before.leaks(ProcessState.now())
    if leaked:
        before.restore()
        pytest.fail(f"the test leaked: {', '.join(leaked)}")


@pytest.fixture
def seed() -> Iterator[Callable[[int], None]]:
    """Seed the global generators for this test only."""
    torch_state, python_state = torch.get_rng_state(), random.getstate()

    def plant(value: int) -> None:
        torch.manual_seed(value)
        random.seed(value)

    plant(0)
    yield plant
    torch.set_rng_state(torch_state)
    random.setstate(python_state)
