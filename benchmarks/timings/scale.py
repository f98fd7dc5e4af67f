"""Measure costs as something grows: the model, ranks, runs of a study, lines of code, steps of a journal.

Prints the tables of ``benchmarks/timings/SCALE.md``. Seconds are processor seconds of one core; ranks are
simulated, and runs of a study have made-up results.

``python -m benchmarks.timings.scale [model | instruments | ranks | study | lint | journal]...``
"""

from __future__ import annotations

import argparse
import os

from benchmarks.timings.scaling import instruments, journal, lint, model, ranks, study

SECTIONS = {
    "model": model.tables,
    "instruments": instruments.tables,
    "ranks": ranks.tables,
    "study": study.tables,
    "lint": lint.tables,
    "journal": journal.tables,
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    return parser


def _processor_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def main() -> None:
    options = make_parser().parse_args()
    if unknown := set(options.sections) - SECTIONS.keys():
        raise SystemExit(f"{', '.join(sorted(unknown))}: the sections are {', '.join(SECTIONS)}")
    for name in options.sections or SECTIONS:
        start = _processor_seconds()
        for table in SECTIONS[name]():
            print(f"\n{table}")
        print(f"{name}: {_processor_seconds() - start:.0f} s of processor time")


if __name__ == "__main__":
    main()
