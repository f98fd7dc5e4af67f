"""The command form drives a script that was never meant for it."""

from __future__ import annotations

import math
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from halfguard.errors import UsageError
from halfguard.validation.executors.local import LocalExecutor
from halfguard.validation.runs.commands import last_line, run_command
from halfguard.validation.runs.metrics import NoMetricError
from halfguard.validation.runs.task import run_tasks
from halfguard.validation.spec import Spec
from halfguard.validation.study import run_study

SCRIPT = Path(__file__).parent / "script.py"
TEMPLATE = f"{sys.executable} {SCRIPT} --dtype {{precision}} --seed {{seed}} --save {{out}}"

WRITES = "import sys; open(sys.argv[3], 'w').write(sys.argv[4])"
TAKES_50_MB = "import sys; kept = b'x' * 50_000_000; open(sys.argv[3], 'w').write('{}')"
WRITES_A_LIST = "import sys; open(sys.argv[3], 'w').write('[1]')"


def spec_of(command: str = TEMPLATE, **keys: Any) -> Spec:
    values = {
        "name": "script",
        "command": command,
        "baseline": "float32",
        "candidates": ["float16"],
        "seeds": 1,
        "metric": {"name": "error", "higher_is_better": False},
    }
    return Spec.load(values | keys)


@pytest.mark.slow
def test_an_unmodified_script_is_a_study(tmp_path: Path) -> None:
    study = run_study(spec_of(), tmp_path, LocalExecutor(2))
    base, half = study.runs
    assert (base.candidate, base.precision, half.precision) == ("float32", "float32", "float16")
    assert base.metrics.keys() == {"error"}
    assert base.metrics["error"] < 1e-6 < half.metrics["error"]
    assert base.peak_bytes is not None
    assert base.peak_bytes > 2**20
    assert [speed.candidate for speed in study.speeds] == ["float16"]
    assert study.speeds[0].ratio == base.duration / half.duration


def test_a_script_that_fails_is_a_failed_run_with_the_last_line_of_its_log() -> None:
    spec = spec_of(f"{TEMPLATE} --crash float16")
    base, half = (run_command(task) for task in run_tasks(spec))
    assert base.failure is None
    assert half.metrics == {}
    assert half.failure.endswith("exit code 1: RuntimeError: out of range")


def test_no_shell_reads_the_command(tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    odd = {"name": "odd", "precision": f"; touch {harm} $(touch {harm}) `touch {harm}` *"}
    run_command(run_tasks(spec_of(candidates=[odd]))[1])
    assert not harm.exists()


def test_braces_that_are_not_ours_stay() -> None:
    spec = spec_of(f"{TEMPLATE} --config '{{\"width\": 3}}'")
    assert run_command(run_tasks(spec)[0]).failure is None


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("no-such-program {precision} {seed} {out}", "'no-such-program' cannot be started"),
        (f"{sys.executable} -c 0 {{precision}} {{seed}} {{out}}", "wrote no JSON"),
        (
            f'{sys.executable} -c "{WRITES_A_LIST}" {{precision}} {{seed}} {{out}}',
            "no metric 'error'",
        ),
    ],
)
def test_a_mistake_in_the_command_is_told(command: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run_command(run_tasks(spec_of(command))[0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"command": (sys.executable, "x" * 140_000)}, "Argument list too long"),
        ({"command": (sys.executable, "a\0b")}, "embedded null byte"),
        ({"command": ("", "{out}")}, "command: '' cannot be started: Invalid argument"),
        ({"folder": "/no/such/folder"}, "No such file or directory"),
    ],
)
def test_what_no_system_can_start_is_a_mistake(change: dict[str, Any], said: str) -> None:
    task = run_tasks(spec_of())[0]
    folder, command = change.get("folder", task.folder), change.get("command", task.job.command)
    job = task.job.model_copy(update={"command": command})
    with pytest.raises(UsageError, match=said) as told:
        run_command(task.model_copy(update={"folder": folder, "job": job}))
    assert len(str(told.value)) < 1000


def test_a_changed_script_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.read_text())
    command = TEMPLATE.replace(str(SCRIPT), str(tmp_path / "script.py"))
    before = run_tasks(spec_of(command))[0].key
    assert run_tasks(spec_of(command))[0].key == before
    (tmp_path / "script.py").write_text(SCRIPT.read_text() + "\n")
    assert run_tasks(spec_of(command))[0].key != before


def test_peak_memory_is_the_scripts_and_not_that_of_the_process_that_starts_it() -> None:
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert here > 100e6  # torch is in this one, or the test could not fail
    command = f'{sys.executable} -I -S -c "{TAKES_50_MB}" {{precision}} {{seed}} {{out}}'
    with pytest.raises(NoMetricError) as told:
        run_command(run_tasks(spec_of(command))[0])
    assert told.value.run.peak_bytes is not None
    assert 50e6 < told.value.run.peak_bytes < 75e6


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('{"error": null}', math.nan),
        ('{"error": NaN}', math.nan),
        ('{"error": "NaN"}', math.nan),
        ('{"error": "inf"}', math.inf),
        ('{"error": "-Infinity"}', -math.inf),
        (f'{{"error": 1{"0" * 400}}}', math.inf),
        (f'{{"error": -1{"0" * 400}}}', -math.inf),
        ('{"error": 2, "note": "12", "done": true}', 2.0),
    ],
)
def test_a_bad_number_is_a_number(written: str, value: float) -> None:
    word = written.replace('"', '\\"')
    command = f'{sys.executable} -c "{WRITES}" {{precision}} {{seed}} {{out}} "{word}"'
    found = run_command(run_tasks(spec_of(command))[0])
    assert found.failure is None
    assert repr(found.metrics) == repr({"error": value})


def test_a_script_that_a_signal_ended_says_so() -> None:
    dies = "import os; os.kill(os.getpid(), 9)"
    command = f'{sys.executable} -c "{dies}" {{precision}} {{seed}} {{out}}'
    assert run_command(run_tasks(spec_of(command))[0]).failure == "the command ended with signal 9"


def test_the_last_line_of_a_log_of_any_length(tmp_path: Path) -> None:
    for said, last in (
        (b"", ""),
        (b"\n \n", ""),
        (b"Traceback:\n  line\nRuntimeError: out of range\n\n", "RuntimeError: out of range"),
        (b"x" * 10_000_000 + b"\nend", "end"),
        (b"x" * 1000, "x" * 300),
        ("ä".encode() * 5000, "ä" * 300),
        (b"\xff\xfe half a character", "\ufffd\ufffd half a character"),
    ):
        (tmp_path / "log").write_bytes(said)
        assert last_line(tmp_path / "log") == last
