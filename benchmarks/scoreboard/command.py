"""The command ``scripts/casebook``."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from benchmarks.scoreboard import published
from benchmarks.scoreboard.cases import ROOT, Case, all_cases, sample
from benchmarks.scoreboard.controls import control_of
from benchmarks.scoreboard.instruments import BY_NAME, INSTRUMENTS, Instrument
from benchmarks.scoreboard.loops.table import fault_table
from benchmarks.scoreboard.page import scoreboard_page
from benchmarks.scoreboard.results import path_of
from benchmarks.scoreboard.running import Job, missing, run_all
from benchmarks.scoreboard.tables import scoreboard
from halfguard.report import to_html

PAGE = ROOT / "docs" / "explanation" / "casebook.md"


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    match options.command:
        case "run":
            return run_cases(options)
        case "publish":
            cases = all_cases()
            published.write(published.collect(cases, options.out))
            return write_page("scoreboard", scoreboard(cases, published.read()))
        case "faults":
            return write_page("faults", fault_table())
        case "html":
            options.path.write_text(
                to_html(scoreboard_page(all_cases(), published.read())), "utf-8"
            )
            return 0
    return check()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/casebook")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run what has no result in the folder yet")
    run.add_argument("names", nargs="*", help="cases whose name contains one of these")
    run.add_argument("--out", type=Path, required=True, help="folder of results, one file each")
    run.add_argument("--instruments", default=",".join(BY_NAME), help="separated by commas")
    run.add_argument("--jobs", type=int, default=1)
    run.add_argument("--sample", type=int, help="this many cases, chosen by a hash of the name")
    run.add_argument("--again", action="store_true", help="drop the results that are there")
    publish = commands.add_parser("publish", help="write casebook/results.json and the tables")
    publish.add_argument("--out", type=Path, required=True, help="folder of results")
    html = commands.add_parser("html", help="write the scoreboard as an HTML page")
    html.add_argument("path", type=Path)
    commands.add_parser("faults", help="put faults into training loops, and write the table")
    commands.add_parser("check", help="fail if the page is not made from the results")
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


def section(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name}: begin -->\n).*?(?=<!-- {name}: end -->)", re.DOTALL)


def write_page(name: str, text: str) -> int:
    page = PAGE.read_text("utf-8")
    PAGE.write_text(section(name).sub(lambda _: text + "\n", page), "utf-8")
    return 0


def check() -> int:
    """Compare the page with the results, and the results with the programs."""
    cases, results = all_cases(), published.read()
    old = published.outdated(cases, results)
    if old:
        print(
            f"Changed since they were run: {', '.join(old)}. scripts/casebook run", file=sys.stderr
        )
    found = section("scoreboard").search(PAGE.read_text("utf-8"))
    same = found is not None and found[0] == scoreboard(cases, results) + "\n"
    if not same:
        print(
            f"{PAGE.name} has other figures than {published.FILE.name}: scripts/casebook publish",
            file=sys.stderr,
        )
    return int(bool(old) or not same)
