"""Faults that no range of a module shows: probe and plan name the line, also outside of every module."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from halfguard.cli import main
from halfguard.errors import NoPlanError, UsageError
from halfguard.probing.plan_search import plan
from halfguard.probing.probe import probe
from halfguard.probing.training import audited_steps
from halfguard.records.finding import Finding
from halfguard.records.plan import PrecisionPlan
from halfguard.workload import Workload, load
from tests.probing import faulty_jobs

FILE = Path(faulty_jobs.__file__)
pytestmark = pytest.mark.usefixtures("seed")


def job(name: str) -> Workload:
    return load(f"{FILE}:{name}")


def line_of(mark: str) -> int:
    lines = FILE.read_text().splitlines()
    return next(n for n, text in enumerate(lines, 1) if text.endswith(f"# <- {mark}"))


def finding(name: str, code: str = "HG601", **options: object) -> Finding:
    report = probe(job(name), steps=8, **options)  # type: ignore[arg-type]
    (found,) = (one for one in report.findings if one.code == code)
    return found


def test_probe_names_the_line_of_a_loss_function() -> None:
    found = finding("recommender")
    assert (found.line, found.subject, found.severity) == (line_of("loss-function"), None, "error")
    assert "log at" in found.message
    assert "outside every module" in found.message
    assert "logsigmoid" in found.cure
    assert "halfguard plan" not in found.cure


def test_probe_names_a_swallowed_overflow_in_a_module() -> None:
    found = finding("own_norm", "HG609")
    assert (found.line, found.subject) == (line_of("swallowed-in-module"), "1")
    assert "The loss and the gradients stay finite but are wrong" in found.why
    assert "in 8 steps, first in step 0" in found.message


def test_probe_names_a_swallowed_overflow_in_the_loss() -> None:
    found = finding("robust_loss", "HG609")
    assert (found.line, found.subject) == (line_of("swallowed-in-loss"), None)
    assert ".float() on its factors" in found.cure


def test_the_audit_changes_neither_the_run_nor_its_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    audited = probe(job("own_norm"), steps=4)
    monkeypatch.setattr("halfguard.probing.probe.audited_steps", lambda _: frozenset())
    bare = probe(job("own_norm"), steps=4)
    assert audited.losses == bare.losses
    assert audited.layers == bare.layers


def test_a_failed_half_run_advises_the_line_and_not_islands() -> None:
    found = finding("recommender", "HG601", precision="fp16-mixed")
    assert "No island covers this line" in found.cure


def test_where_fp32_fails_islands_are_not_advised() -> None:
    found = finding("failing_in_fp32", "HG601")
    assert "FP32 fails as well, so islands cannot help" in found.cure


def test_vanishing_gradients_are_a_finding() -> None:
    found = finding("vanishing_gradients", "HG610", scale=1.0)
    assert "100% of its gradients are rounded to zero at loss scale 1" in found.message
    report = probe(job("vanishing_gradients"), steps=2, scale=65536.0)
    assert "HG610" not in {one.code for one in report.findings}


def test_plan_says_that_no_island_covers_a_loss_function() -> None:
    for name, mark in (("recommender", "loss-function"), ("robust_loss", "swallowed-in-loss")):
        with pytest.raises(NoPlanError, match="outside every module") as caught:
            plan(job(name), steps=8)
        assert f"{FILE.name}:{line_of(mark)}" in caught.value.message


def test_plan_puts_the_island_where_the_overflow_is_swallowed() -> None:
    found = plan(job("own_norm"), steps=4)
    assert found.modules == ("1",)
    assert "has a swallowed overflow in the forward pass of step 0" in found.islands[0].reason
    assert found.evidence.deviation < 0.01


def test_weights_in_half_are_not_called_fp32() -> None:
    with pytest.raises(UsageError, match="is not possible because 2 parameters are 16-bit"):
        plan(job("half_weights"), steps=2)


def test_audited_steps_are_spread_over_the_run() -> None:
    assert audited_steps(3) == {0, 1, 2}
    assert len(audited_steps(20)) == 20
    assert audited_steps(200) == set(range(0, 200, 10))


@pytest.mark.parametrize(
    ("command", "name", "says"),
    [
        ("probe", "recommender", "outside every module"),
        ("plan", "recommender", "no island covers it"),
    ],
)
def test_the_commands_exit_with_1(
    command: str,
    name: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.argv", ["halfguard", command, f"{FILE}:{name}", "--steps", "8"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 1, printed
    assert says in " ".join((printed.out + printed.err).split())


def test_a_fault_in_the_models_own_forward_has_its_line_as_island(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    file = tmp_path / "plan.yaml"
    arguments = ["plan", f"{FILE}:whole_model", "--steps", "8", "-o", str(file)]
    monkeypatch.setattr("sys.argv", ["halfguard", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert "1 island; 2 trials" in printed
    assert "halfguard.apply_plan(model" in printed
    (line,) = PrecisionPlan.load(file).lines
    assert line.code.startswith("return hidden / torch.sqrt(")


def test_a_job_that_raises_in_half_says_so() -> None:
    workload = job("own_norm")
    model = nn.Sequential(nn.Linear(16, 1), nn.Sigmoid())
    workload.model, workload.remake = model, None
    workload.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bce = nn.functional.binary_cross_entropy
    workload.loss = lambda model, batch: bce(model(batch[0])[:, 0].float(), batch[1].float())
    report = probe(workload, steps=2)
    (found,) = (one for one in report.findings if one.code == "HD100")
    assert (
        "in 16-bit precision the job raises in 2 steps, first in step 0: RuntimeError"
        in found.message
    )
