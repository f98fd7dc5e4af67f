"""Run instruments on the casebook and keep the score: benchmarks/casebook/SCORES.md.

scripts/bench casebook run --out FOLDER      run what has no result in FOLDER yet
scripts/bench casebook publish --out FOLDER  add them to the published results, and make the tables
scripts/bench casebook faults                put faults into training loops, and write their table
scripts/bench casebook html PAGE             write the scoreboard as an HTML page
scripts/bench casebook grist CHECKOUT        score the PyTorch programs of GRIST, a set of numerical bugs
scripts/bench casebook traincheck CHECKOUT   the same for TrainCheck's reproductions of silent errors
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.casebook import published
from benchmarks.casebook.cases import ROOT, Case, all_cases, sample
from benchmarks.casebook.controls import control_of
from benchmarks.casebook.instruments import BY_NAME, INSTRUMENTS, Instrument
from benchmarks.casebook.loops.table import fault_table
from benchmarks.casebook.others import grist, traincheck
from benchmarks.casebook.page import scoreboard_page
from benchmarks.casebook.results import path_of
from benchmarks.casebook.running import Job, missing, run_all
from benchmarks.casebook.scoring import Results
from benchmarks.casebook.summary import comparison, fault_summary, summary
from benchmarks.casebook.tables import scoreboard
from benchmarks.tables.sections import Place, read_section, update_sections
from halfguard.report.html import to_html

OTHERS = {"grist": grist.main, "traincheck": traincheck.main}
PAGE = ROOT / "benchmarks" / "casebook" / "SCORES.md"
SUMMARY = ROOT / "docs" / "explanation" / "results.md"
README = ROOT / "README.md"


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    match options.command:
        case "run":
            return run_cases(options)
        case "publish":
            cases = all_cases()
            published.write(published.read() | published.collect(cases, options.out))
            update(check=False)
            return 0
        case "faults":
            table = fault_table()
            update_sections(
                {(PAGE, "faults"): table, (SUMMARY, "faults"): fault_summary(table)}, check=False
            )
            return 0
        case "grist" | "traincheck":
            return OTHERS[options.command](options.checkout)
        case "html":
            page = scoreboard_page(all_cases(), published.read())
            options.path.write_text(to_html(page), "utf-8")
            return 0
    raise AssertionError(options.command)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench casebook")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run what has no result in the folder yet")
    run.add_argument("names", nargs="*", help="cases whose name contains one of these")
    run.add_argument("--out", type=Path, required=True, help="folder of results, one file each")
    run.add_argument("--instruments", default=",".join(BY_NAME), help="separated by commas")
    run.add_argument("--jobs", type=int, default=1)
    run.add_argument("--sample", type=int, help="this many cases, chosen by a hash of the name")
    run.add_argument("--again", action="store_true", help="drop the results that are there")
    publish = commands.add_parser(
        "publish", help="write benchmarks/casebook/results.json and the tables"
    )
    publish.add_argument("--out", type=Path, required=True, help="folder of results")
    html = commands.add_parser("html", help="write the scoreboard as an HTML page")
    html.add_argument("path", type=Path)
    for name in OTHERS:
        others = commands.add_parser(name, help="score another set of bugs, from a checkout")
        others.add_argument("checkout", type=Path)
    commands.add_parser("faults", help="put faults into training loops, and write the table")
    return parser.parse_args(arguments)


def run_cases(options: argparse.Namespace) -> int:
    """Run instruments, each with its control."""
    cases = all_cases()
    if options.names:
        cases = [case for case in cases if any(name in case.name for name in options.names)]
    if options.sample:
        cases = sample(cases, options.sample)
    chosen = [one for one in INSTRUMENTS if one.name in options.instruments.split(",")]
    for one in chosen:
        if reason := one.unavailable():
            print(f"{one.name} is left out: {reason}")
    chosen = [one for one in chosen if not one.unavailable()]
    if options.again:
        forget(cases, chosen, options.out)
    jobs: list[Job] = [
        job for one in chosen for job in missing([control_of(one)], [one], options.out)
    ]
    run_all(jobs + missing(cases, chosen, options.out), options.out, workers=options.jobs)
    return 0


def forget(cases: list[Case], instruments: list[Instrument], out: Path) -> None:
    for one in instruments:
        for case in [*cases, control_of(one)]:
            path_of(out, case.name, one.name).unlink(missing_ok=True)


def made_tables(cases: list[Case], results: Results) -> dict[Place, str]:
    """Return the tables that are made from the results, and the summary of the table of faults."""
    return {
        (PAGE, "scoreboard"): scoreboard(cases, results),
        (SUMMARY, "casebook"): summary(cases, results),
        (README, "casebook"): comparison(cases, results),
        (SUMMARY, "faults"): fault_summary(read_section((PAGE, "faults")) + "\n"),
    }


def update(*, check: bool) -> list[str]:
    """Write the tables, or compare them with the results, and the results with the programs."""
    cases, results = all_cases(), published.read()
    problems = update_sections(made_tables(cases, results), check=check)
    if old := published.outdated(cases, results):
        problems.append(
            f"changed since they were run: {', '.join(old)} (scripts/bench casebook run)"
        )
    return problems


if __name__ == "__main__":
    sys.exit(main())
