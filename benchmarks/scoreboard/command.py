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
from benchmarks.scoreboard.others import grist, traincheck
from benchmarks.scoreboard.page import scoreboard_page
from benchmarks.scoreboard.results import path_of
from benchmarks.scoreboard.running import Job, missing, run_all
from benchmarks.scoreboard.scoring import Results
from benchmarks.scoreboard.summary import fault_summary, summary
from benchmarks.scoreboard.tables import scoreboard
from halfguard.report import to_html

OTHERS = {"grist": grist.main, "traincheck": traincheck.main}
PAGE = ROOT / "docs" / "explanation" / "casebook.md"
README = ROOT / "README.md"
Place = tuple[Path, str]  # a page, and the name of a section in it


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    match options.command:
        case "run":
            return run_cases(options)
        case "publish":
            cases = all_cases()
            published.write(published.read() | published.collect(cases, options.out))
            write_tables(made_tables(cases, published.read()))
            return 0
        case "faults":
            table = fault_table()
            write_tables({(PAGE, "faults"): table, (README, "faults"): fault_summary(table)})
            return 0
        case "grist" | "traincheck":
            return OTHERS[options.command](options.checkout)
        case "html":
            page = scoreboard_page(all_cases(), published.read())
            options.path.write_text(
                to_html(page, f"scripts/casebook html {options.path.name}"), "utf-8"
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
    for name in OTHERS:
        others = commands.add_parser(name, help="score another set of bugs, from a checkout")
        others.add_argument("checkout", type=Path)
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


def made_tables(cases: list[Case], results: Results) -> dict[Place, str]:
    """Return the tables that are made from the results, and README's from the table of faults."""
    faults = section("faults").search(PAGE.read_text("utf-8"))
    return {
        (PAGE, "scoreboard"): scoreboard(cases, results),
        (README, "casebook"): summary(cases, results),
        (README, "faults"): fault_summary(faults[0] if faults else ""),
    }


def write_tables(tables: dict[Place, str]) -> None:
    for (page, name), text in tables.items():
        old = page.read_text("utf-8")
        found = section(name).search(old)
        if found is None:
            raise SystemExit(f"{page.name} lacks the lines <!-- {name}: begin --> and end.")
        page.write_text(f"{old[: found.start()]}{text}\n{old[found.end() :]}", "utf-8")


def check() -> int:
    """Compare the pages with the results, and the results with the programs."""
    cases, results = all_cases(), published.read()
    old = published.outdated(cases, results)
    if old:
        print(
            f"Changed since they were run: {', '.join(old)}. scripts/casebook run", file=sys.stderr
        )
    differ = [
        place for place, text in made_tables(cases, results).items() if not shows(place, text)
    ]
    for page, name in differ:
        print(
            f"{page.name} has other figures than {published.FILE.name} ({name}): scripts/casebook publish",
            file=sys.stderr,
        )
    return int(bool(old or differ))


def shows(place: Place, text: str) -> bool:
    page, name = place
    found = section(name).search(page.read_text("utf-8"))
    return found is not None and found[0] == text + "\n"
