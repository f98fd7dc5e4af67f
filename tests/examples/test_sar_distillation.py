"""The third example system fails as its README says, and is cured as its README says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.support.docs import ROOT
from tests.support.modules import modules_of

import halfguard as hg
from halfguard.diagnosis.doctor import doctor_workload
from halfguard.journal import read_rows
from halfguard.lint.files import find_files
from halfguard.lint.run import Linter, run_files
from halfguard.lint.settings import Settings
from halfguard.records import NoteRow
from halfguard.records.plan import PrecisionPlan
from halfguard.workload import load

FOLDER = ROOT / "examples" / "sar_distillation"
MODULES = ("prepare", "model", "workload", "before", "train")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("seed")]


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """The example's modules, which import each other by plain names; its data is made if it is not there."""
    with modules_of(FOLDER, *MODULES) as found:
        with torch.random.fork_rng():
            found.prepare.load()
        yield found


def train(example: Any, *flags: str) -> None:
    example.train.main(example.train.read_flags(flags))


# -- the failure


@pytest.mark.parametrize("variant", ["broken", "patched"])
def test_the_loop_prints_what_its_team_saw(example: Any, variant: str, capsys: Any) -> None:
    train(example, "--variant", variant, "--mode", "ultra_conservative", "--train_steps", "15")
    told = capsys.readouterr().out
    assert told.count("Numerical issue: total_loss=nan, kd=0.0000, ce=nan") == 10
    assert "step 1: Numerical issue" in told
    assert "Too many NaN batches" in told
    assert "Final validation perplexity: nan" in told
    largest = re.search(r"1 steps taken; the largest logit was ([\d.]+)", told)
    assert largest is not None
    assert float(largest[1]) < 100  # half ends at 65504


def first_step(example: Any, variant: str, epsilon: float) -> tuple[int, float]:
    """Take one step by cross-entropy alone; return how many weights are bad, and the share that changed."""
    torch.manual_seed(0)
    work = example.workload.job(0, variant, example.workload.MODES["ultra_conservative"])
    before = [p.clone() for p in work.model.student.parameters()]
    for group in work.optimizer.param_groups:
        group["eps"] = epsilon
    work.model(*next(iter(work.batches())))[2].backward()
    after = list(work.model.student.parameters())
    assert all(p.grad.isfinite().all() for p in after)
    work.optimizer.step()
    bad = sum(int((~p.isfinite()).sum()) for p in after)
    changed = sum(int((p != q).sum()) for p, q in zip(before, after, strict=True))
    return bad, changed / sum(p.numel() for p in after)


def test_the_cause_is_an_epsilon_that_is_0_in_half(example: Any) -> None:
    assert first_step(example, "broken", 1e-8)[0] > 1_000
    bad, changed = first_step(example, "broken", 1e-4)
    assert bad == 0
    assert changed < 0.7  # the other updates of 5e-6 are rounded away
    assert first_step(example, "epsilon", 1e-4)[1] > 0.99  # FP32 weights


def test_a_nan_in_the_printed_loss_is_not_in_the_gradients(example: Any) -> None:
    work = example.workload.job(0, "epsilon")
    with hg.emulate_autocast("cuda"):
        total, kd, ce = work.model(*next(iter(work.batches())))
    total.backward()
    assert (total.isnan().item(), kd.isnan().item(), ce.isfinite().item()) == (True, True, True)
    assert all(p.grad.isfinite().all() for p in work.model.student.parameters())


# -- what the instruments say: lint nothing, the doctor the truth


def test_the_doctor_is_the_first_to_tell_the_truth(example: Any) -> None:
    found = run_files(Linter(Settings()), find_files([FOLDER], Settings()))
    assert not [one for result in found for one in result.diagnostics]
    work = load(f"{FOLDER}/workload.py:broken")
    findings = {
        one.code: one.message for one in doctor_workload(work, precision="fp16-mixed").findings
    }
    assert "eps=1e-08 rounds to 0 in float16" in findings["HG403"]
    assert "HG401" in findings
    assert "log in alignment returned the first NaN or Inf" in findings["HG601"]


def test_the_probe_names_the_line_behind_it(example: Any) -> None:
    report = hg.probe(load(f"{FOLDER}/workload.py:epsilon"), steps=2)
    messages = [one.message for one in report.findings if one.code == "HG601"]
    assert any(re.search(r"log at \S*model\.py:\d+, in alignment", one) for one in messages)
    report = hg.probe(load(f"{FOLDER}/workload.py:job"), steps=2)
    assert not [one for one in report.findings if one.code in {"HG601", "HG609"}]


# -- the cure


def test_heal_keeps_the_alignment_in_fp32_and_the_incident_is_replayed(
    example: Any, tmp_path: Path, capsys: Any
) -> None:
    train(
        example, "--variant", "epsilon", "--heal", "--train_steps", "8", "--run_dir", str(tmp_path)
    )
    told = capsys.readouterr().out
    assert "8/8 steps applied (100.0%), 3 of them retried in FP32" in told
    [line] = PrecisionPlan.load(tmp_path / "plan.yaml").lines
    assert line.within == "Alignment"
    autopsy = hg.replay(tmp_path / "incidents" / "000000-r0", f"{FOLDER}/workload.py:epsilon")
    assert autopsy.reproduced == "same fault"  # NaN has no digits to compare
    assert autopsy.culprit is not None
    assert (autopsy.culprit.op, autopsy.culprit.module) == ("log", "alignment")
    assert autopsy.cure is not None
    assert f"model.py:{line.line} in FP32" in autopsy.cure.sentence  # replay names the same line


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_cured_version_learns(example: Any, dtype: str, tmp_path: Path, capsys: Any) -> None:
    flags = ("--train_steps", "16", "--eval_steps", "8", "--model_dtype", dtype)
    train(example, *flags, "--run_dir", str(tmp_path))
    told = capsys.readouterr().out
    counts = re.search(r"(\d+)/16 steps applied .*, (\d+) of them retried", told)
    assert counts is not None
    assert int(counts[1]) >= 14  # but for steps in which the loss scale finds its level
    assert int(counts[2]) <= 2
    assert "0 of them without KD" in told
    first, last = (float(x) for x in re.findall(r"perplexity ([\d.]+) \(best\)", told))
    assert last < first < 512
    assert re.search(r"memory [\d.]+ of 2 GB", told)
    saved = torch.load(tmp_path / "best.pt", weights_only=True)
    assert saved["best"]["value"] == pytest.approx(last, abs=0.01)
    example.model.Student().load_state_dict(saved["student"])


def test_modes_have_the_values_of_their_team() -> None:
    modes = yaml.safe_load((FOLDER / "config.yaml").read_text())["modes"]
    names = ("student_lr", "temperature", "alpha_kd", "alpha_ce", "max_norm", "skip_above")
    values = {mode: tuple(modes[mode][name] for name in names) for mode in modes}
    assert values["ultra_conservative"] == (5e-6, 1.5, 0.05, 0.95, 0.5, 2.0)
    assert values["balanced"] == (1e-5, 2.0, 0.1, 0.9, 0.5, 2.0)


def test_a_step_above_the_limit_is_skipped(example: Any, capsys: Any) -> None:
    flags = ("--mode", "balanced", "--train_steps", "2")
    train(example, *flags, "--skip_above", "0.01")
    assert "0/2 steps applied (0.0%)" in capsys.readouterr().out


# -- what must not go unnoticed


@pytest.fixture
def loud_teacher(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the teacher logits that half cannot hold."""
    job = example.workload.job

    def make(*arguments: Any) -> Any:
        work = job(*arguments)
        with torch.no_grad():
            work.model.teacher.model.lm_head.weight.mul_(1e6)
        return work

    monkeypatch.setattr(example.train, "job", make)


@pytest.mark.usefixtures("loud_teacher")
def test_steps_without_kd_are_counted_and_in_the_journal(
    example: Any, tmp_path: Path, capsys: Any
) -> None:
    train(example, "--train_steps", "4", "--eval_steps", "2", "--run_dir", str(tmp_path))
    told = capsys.readouterr().out
    assert "2 of them without KD" in told
    assert "4 of them without KD" in told
    assert "4/4 steps applied" in told
    notes = [r.text for r in read_rows(tmp_path / "steps.jsonl") if isinstance(r, NoteRow)]
    assert notes == ["KD was not finite in 2 steps: they learnt by CE alone"] * 2


def test_a_run_above_its_memory_budget_ends(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(example.train.CONFIG, "memory_budget_gb", 0.001)
    with pytest.raises(SystemExit, match=r"above the budget of 0\.001 GB"):
        train(example, "--train_steps", "1")


def test_places_of_student_and_teacher_end_at_the_same_letter(example: Any) -> None:
    texts = ["the student reads and the teacher knows " * 20]
    student, teacher = (example.prepare.train_tokenizer(texts, n) for n in (260, 300))
    piece = "the teacher reads and knows"
    tokens, known, places = example.prepare.encode_row(piece, student, teacher)
    shared = [(i, place) for i, place in enumerate(places) if place >= 0]
    assert 0 < len(shared) < len(tokens)
    for i, place in shared:
        assert student.decode(tokens[: i + 1]) == teacher.decode(known[: place + 1])
