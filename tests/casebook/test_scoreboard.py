"""The runner and its scores: real programs in real processes, and rates by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.casebook import command, published
from benchmarks.casebook.cases import ROOT, all_cases, sample
from benchmarks.casebook.controls import control_of, passed
from benchmarks.casebook.instruments import BY_NAME, INSTRUMENTS
from benchmarks.casebook.page import scoreboard_page
from benchmarks.casebook.results import Alarm, Ran, Result, load
from benchmarks.casebook.running import missing, run_all
from benchmarks.casebook.scoring import judge, rows
from benchmarks.casebook.summary import fault_summary, summary
from benchmarks.casebook.tables import scoreboard
from benchmarks.rate import Rate

from halfguard.report.html import to_html

CASE = next(case for case in all_cases() if case.name == "003_mask_constant")
HEALTHY = next(case for case in all_cases() if case.healthy)
LINT = BY_NAME["lint"]


def result(broken: list[Alarm], cured: list[Alarm]) -> Result:
    programs = {"broken": Ran(tuple(broken)), "cured": Ran(tuple(cured))}
    return Result(CASE.name, "lint", CASE.digest, programs)


def test_the_culprit_is_right_within_a_line() -> None:
    line = CASE.culprit_line
    near, far = (judge(CASE, LINT, result([Alarm("A", "", line + by)], [])) for by in (1, 2))
    assert far is not None
    assert (near.detected, near.culprit, near.in_time, near.silent_on_cure) == (
        True,
        True,
        True,
        True,
    )
    assert (far.detected, far.culprit) == (True, False)


def test_an_alarm_that_the_cure_raises_too_is_no_detection() -> None:
    same = Alarm("A", "", 1)
    judged = judge(CASE, LINT, result([same], [same]))
    assert (judged.detected, judged.silent_on_cure) == (False, False)


def test_a_late_detection_is_not_in_time() -> None:
    judged = judge(CASE, BY_NAME["why"], result([Alarm("A")], []))
    assert judged is not None
    assert CASE.facts["seen_first"] == "source"
    assert judged.detected
    assert not judged.in_time


def test_a_case_without_its_cured_program_is_not_counted() -> None:
    half = replace(result([Alarm("A")], []), programs={"broken": Ran((Alarm("A"),))})
    assert judge(CASE, LINT, half) is None


def test_an_alarm_on_a_healthy_program_is_false() -> None:
    said = Result(HEALTHY.name, "lint", HEALTHY.digest, {"program": Ran((Alarm("A"),))})
    (row,) = rows([HEALTHY], {(HEALTHY.name, "lint"): said})
    assert str(row.false_alarms) == "1 of 1 (21-100%)"
    assert row.detected.total == 0


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"), [(0, 10, 0.0, 0.2775), (8, 10, 0.4902, 0.9433), (0, 0, 0, 1)]
)
def test_the_interval_is_wilsons(hits: int, total: int, low: float, high: float) -> None:
    assert Rate(hits, total).interval == pytest.approx((low, high), abs=1e-4)


def test_published_results_are_read_as_written(tmp_path: Path) -> None:
    results = {(CASE.name, "lint"): result([Alarm("A", "", 3)], [])}
    published.write(results, tmp_path / "results.json")
    assert published.read(tmp_path / "results.json") == results


def test_the_page_has_the_figures_of_the_published_results() -> None:
    assert command.update(check=True) == []


@pytest.mark.slow
def test_a_table_with_other_figures_is_told_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "results.md"
    text = command.SUMMARY.read_text("utf-8")
    page.write_text(text.replace(" of 11 |", " of 12 |", 1))
    monkeypatch.setattr(command, "SUMMARY", page)
    assert command.update(check=True) == ["results.md has another table (faults)"]
    assert command.update(check=False) == []
    assert page.read_text("utf-8") == text


def test_the_summary_counts_loops_and_names_who_has_not_run() -> None:
    table = "| fault | one | two |\n| --- | --- | --- |\n| nan | - | L B |\n| inf | - | S2 |\n\n**L** lost."
    assert fault_summary(table).splitlines()[2:] == ["| one | 0 of 2 |", "| two | 2 of 2 |"]
    hidden = next(case for case in all_cases() if case.held_out and not case.healthy)
    programs = {"broken": Ran((Alarm("A", "", hidden.culprit_line),)), "cured": Ran(())}
    said = Result(hidden.name, "lint", hidden.digest, programs)
    told = summary([hidden, HEALTHY], {(hidden.name, "lint"): said})
    assert told.startswith("1 failing programs")
    assert "| halfguard lint | 1 of 1 |" in told
    assert told.rpartition("\n\n")[2].startswith("Not run on held-out programs yet: hg.doctor")


def test_changed_programs_are_told() -> None:
    old = replace(result([], []), digest="other")
    assert published.outdated([CASE], {(CASE.name, "lint"): old}) == [CASE.name]


def test_every_instrument_has_a_control_that_passed() -> None:
    results = published.read()
    told = {one.name: passed(results.get((control_of(one).name, one.name))) for one in INSTRUMENTS}
    assert told == dict.fromkeys(BY_NAME, True)


def test_the_html_page_shows_every_instrument() -> None:
    page = to_html(scoreboard_page(all_cases(), published.read()))
    assert all(one.title in page for one in INSTRUMENTS)
    assert scoreboard([CASE], {}).count("###") == 6


@pytest.mark.slow
def test_a_run_is_resumed_where_it_ended(tmp_path: Path) -> None:
    instruments = [BY_NAME[name] for name in ("bare", "anomaly", "guard", "doctor")]
    jobs = missing([CASE], instruments, tmp_path)
    assert len(jobs) == 8
    run_all(jobs[:2], tmp_path, workers=1)
    left = missing([CASE], instruments, tmp_path)
    assert len(left) == 6
    run_all(left, tmp_path, workers=2)
    assert missing([CASE], instruments, tmp_path) == []
    bare = load(tmp_path, CASE.name, "bare")
    (crash,) = bare.programs["broken"].alarms
    assert (crash.code, crash.line) == ("crash", CASE.culprit_line)
    assert bare.programs["cured"] == replace(bare.programs["cured"], alarms=(), ended="finished")


@pytest.mark.slow
def test_the_command_runs_a_sample_with_controls(tmp_path: Path) -> None:
    chosen = "lint,bare,anomaly,guard,doctor,debug_underflow_overflow"
    names = ["00", "206_trainer"]  # plain programs and one with a framework; none compiles
    started = [
        sys.executable,
        "-m",
        "benchmarks.casebook.command",
        "run",
        *names,
        "--out",
        str(tmp_path),
        "--sample",
        "2",
    ]
    subprocess.run([*started, "--instruments", chosen], cwd=ROOT, check=True, timeout=850)
    cases = [case for case in all_cases() if any(name in case.name for name in names)]
    assert len(cases) > 2
    for name in chosen.split(","):
        one = BY_NAME[name]
        assert passed(load(tmp_path, control_of(one).name, name)), name
        for case in sample(cases, 2):
            found = json.loads((tmp_path / case.name / f"{name}.json").read_text())
            assert found["reason"] or set(found["programs"]) == {p.stem for p in case.programs}
