"""``halfguard probe`` and ``halfguard plan`` from the command line: output, files, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from halfguard.cli import main
from halfguard.cli.plan import _trials
from halfguard.records.plan import PrecisionPlan
from halfguard.records.ranges import ProbeReport

ROOT = Path(__file__).parents[2]


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def halfguard(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seed: object
) -> Callable[..., Done]:
    """Return a function that runs the program in this process: importing torch takes seconds.

    The fixture ``seed`` restores Python's random generator, which rich uses for its links.
    """
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*args: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["halfguard", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Done(int(ended.value.code or 0), printed.out, printed.err)

    return run


def test_probe_prints_a_table_and_findings(halfguard: Run) -> None:
    done = halfguard("probe", "examples/overflowing.py:t5", "--steps", "3")
    assert (done.returncode, done.stderr) == (1, "")
    row = next(line for line in done.stdout.splitlines() if "blocks.1.wo" in line)
    assert row.split()[1].startswith("-")
    assert "HG601" in done.stdout
    assert "halfguard plan ENTRY" in done.stdout


@pytest.mark.slow
def test_probe_as_json_with_a_page(tmp_path: Path, halfguard: Run) -> None:
    html = tmp_path / "map.html"
    done = halfguard(
        "probe", "examples.overflowing:vae", "--steps", "2", "--json", "--html", str(html)
    )
    assert done.stderr == ""
    report = ProbeReport.from_json(done.stdout)
    assert report.steps == 2
    assert html.stat().st_size > 1000


def test_plan_writes_a_file_and_says_why(tmp_path: Path, halfguard: Run) -> None:
    file = tmp_path / "plan.yaml"
    done = halfguard("plan", "examples/overflowing.py:graph", "-o", str(file), "--steps", "4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 island; ")
    plan = PrecisionPlan.load(file)
    assert plan.modules == ("layers.1.message",)
    assert plan.islands[0].reason in " ".join(done.stdout.split())


def test_plan_as_json(halfguard: Run) -> None:
    done = halfguard("plan", "examples/overflowing.py:logits", "--steps", "2", "--json")
    assert done.returncode == 0
    body = json.loads(done.stdout)
    assert (body["kind"], [island["module"] for island in body["islands"]]) == ("plan", ["head"])


@pytest.mark.parametrize("command", ["probe", "plan"])
@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["nowhere.py:f"], "there is no file 'nowhere.py'"),
        (["examples/overflowing.py:t6"], "Did you mean: t5"),
        (["examples/overflowing.py:stretch"], "calls stretch with one argument, the seed"),
        (["examples/overflowing.py:t5", "--precision", "half"], "precision 'half' is not known"),
    ],
)
def test_a_mistake_is_a_usage_error(
    command: str, args: list[str], says: str, halfguard: Run
) -> None:
    done = halfguard(command, *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_without_a_plan_is_a_failure(tmp_path: Path, halfguard: Run) -> None:
    (tmp_path / "job.py").write_text(
        "import torch\nfrom halfguard import Workload\n"
        "def build(seed):\n"
        "    model = torch.nn.Linear(4, 4)\n"
        "    loss = lambda m, x: (m(x) * 1e3 @ (m(x) * 1e3).T).mean()\n"
        "    return Workload(model, loss, [torch.ones(2, 4)], torch.optim.SGD(model.parameters(), 1e-9))\n"
    )
    done = halfguard("plan", f"{tmp_path}/job.py:build", "--steps", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "No set of islands helps" in done.stderr


def test_without_torch_the_extra_is_named() -> None:
    code = "import sys; sys.modules['torch'] = None; from halfguard.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", "x.py:f"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pip install 'halfguard[torch]'" in done.stderr


def test_one_trial_is_singular() -> None:
    assert [_trials(count) for count in (0, 1, 2)] == ["0 trials", "1 trial", "2 trials"]
