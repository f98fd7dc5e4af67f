"""``halfguard probe`` and ``halfguard plan`` from the command line: output, files, exit codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from halfguard.cli.plan import _trials
from halfguard.records.plan import PrecisionPlan
from halfguard.records.ranges import ProbeReport
from halfguard.records.rounding import RoundingReport
from tests.cli.command_result import Run, run_in
from tests.support.docs import ROOT


@pytest.fixture
def halfguard(seed: object) -> Run:
    """The program in this process; ``seed`` puts back the generator that rich draws from."""
    return partial(run_in, ROOT)


def test_probe_prints_a_table_and_findings(halfguard: Run) -> None:
    done = halfguard("probe", "examples/overflowing.py:t5", "--steps", "3")
    assert done.exit_code == 1
    assert all(line.startswith("probe in ") for line in done.err.splitlines()), "progress alone"
    row = next(line for line in done.out.splitlines() if line.startswith(" blocks.1.wo"))
    assert row.split()[1] == "overflows"
    assert row.split()[2].startswith("-")
    assert "HG601" in done.out
    assert "halfguard plan ENTRY" in done.out


def test_probe_shows_the_lines_that_lose_digits(tmp_path: Path, halfguard: Run) -> None:
    (tmp_path / "job.py").write_text(JOB)
    html = tmp_path / "digits.html"
    entry = f"{tmp_path / 'job.py'}:build"
    done = halfguard("probe", entry, "--digits", "--steps", "2", "--html", str(html))
    assert done.exit_code == 1, done.err
    assert "one line costs" in " ".join(done.out.split())
    assert "in FP32 the step's error falls from" in " ".join(done.out.split())
    assert "times the unavoidable rounding error" in html.read_text("utf-8")
    report = RoundingReport.from_json(halfguard("probe", entry, "--digits", "--json").out)
    assert report.findings[0].code.startswith("clock = minutes.half()")


JOB = """
import torch
from halfguard import Workload

class Clock(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 1)

    def forward(self, minutes):
        clock = minutes.half()
        phase = clock.float()[:, None] * torch.pi / 720
        return self.head(torch.cat([phase.sin(), phase.cos()], -1))

def build(seed=0):
    torch.manual_seed(seed)
    model, minutes = Clock(), torch.randint(20000, 60000, (64,))
    loss = lambda model, x: (model(x).float() - (x / 720 * torch.pi).sin()[:, None]).square().mean()
    return Workload(model, loss, [minutes] * 4, torch.optim.SGD(model.parameters(), lr=0.1))
"""


@pytest.mark.slow
def test_probe_as_json_with_a_page(tmp_path: Path, halfguard: Run) -> None:
    html = tmp_path / "map.html"
    done = halfguard(
        "probe", "examples.overflowing:vae", "--steps", "2", "--json", "--html", str(html)
    )
    assert done.err == ""
    report = ProbeReport.from_json(done.out)
    assert report.steps == 2
    assert html.stat().st_size > 1000


def test_plan_writes_a_file_and_says_why(tmp_path: Path, halfguard: Run) -> None:
    file = tmp_path / "plan.yaml"
    done = halfguard("plan", "examples/overflowing.py:graph", "-o", str(file), "--steps", "4")
    assert done.exit_code == 0, done.err
    assert done.out.startswith("1 island; ")
    plan = PrecisionPlan.load(file)
    (line,) = plan.lines
    assert line.code.startswith("message = self.message(x)")
    assert line.reason in " ".join(done.out.split())
    assert "0.0% of the matrix-product FLOPs move to FP32" in " ".join(done.out.split())


def test_plan_prints_the_lines_for_transformers(tmp_path: Path, halfguard: Run) -> None:
    file = tmp_path / "plan.yaml"
    arguments = ["examples/overflowing.py:rms_norm", "--steps", "4", "-o", str(file)]
    done = halfguard("plan", *arguments, "--for", "transformers")
    assert done.exit_code == 0, done.err
    assert f"halfguard.apply_plan(model, '{file}')" in done.out
    assert "_keep_in_fp32_modules = ['1']" in done.out


def test_plan_as_json(halfguard: Run) -> None:
    done = halfguard("plan", "examples/overflowing.py:logits", "--steps", "2", "--json")
    assert done.exit_code == 0
    body = json.loads(done.out)
    assert (body["kind"], [island["module"] for island in body["islands"]]) == ("plan", ["head"])


def test_layers_that_are_not_shown_are_said_to_be_elsewhere(
    halfguard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halfguard.cli.probe.ROWS", 2)
    words = halfguard("probe", "examples/overflowing.py:t5", "--steps", "1").words
    assert "13 layers with more headroom are not shown; --html and --json list them." in words


def test_a_job_without_a_plan_is_a_failure(tmp_path: Path, halfguard: Run) -> None:
    (tmp_path / "job.py").write_text(
        "import torch\nfrom halfguard import Workload\n"
        "def build(seed):\n"
        "    model = torch.nn.Linear(4, 4)\n"
        "    loss = lambda m, x: (m(x) * 1e3 @ (m(x) * 1e3).T).mean()\n"
        "    return Workload(model, loss, [torch.ones(2, 4)], torch.optim.SGD(model.parameters(), 1e-9))\n"
    )
    done = halfguard("plan", f"{tmp_path}/job.py:build", "--steps", "1")
    assert (done.exit_code, done.out) == (1, "")
    assert "No set of islands helps" in done.err


def test_one_trial_is_singular() -> None:
    assert [_trials(count) for count in (0, 1, 2)] == ["0 trials", "1 trial", "2 trials"]
