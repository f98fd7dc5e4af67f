"""The command ``scripts/tables``: write what docs and README.md show of measurements, or check it.

scripts/tables [NAME...]            write tables and pictures; without names, all of them
scripts/tables --check [NAME...]    write nothing; fail if a page shows something else
"""

from __future__ import annotations

import argparse
import importlib
import sys

# Cheap ones first. Each module has `update(check=...)`, which returns the problems that it finds.
TABLES = {
    "casebook": "benchmarks.casebook.command",
    "versions": "benchmarks.versions",
    "studies": "benchmarks.tables.studies",
    "lint_truth": "benchmarks.lint_truth.command",
    "ops": "benchmarks.tables.ops",
    "plans": "benchmarks.tables.plans",
    "healed_run": "benchmarks.tables.healed_run",
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TABLES))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - TABLES.keys():
        parser.error(f"{', '.join(sorted(unknown))}: the tables are {', '.join(TABLES)}")
    problems = [
        f"{name}: {problem}"
        for name in options.names or TABLES
        for problem in importlib.import_module(TABLES[name]).update(check=options.check)
    ]
    if problems:
        print(*problems, "To write them: scripts/tables NAME", sep="\n", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
