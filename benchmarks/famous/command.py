"""Measure healing on models whose FP16 failures are published: benchmarks/famous/README.md.

scripts/bench famous check [NAME...]           whether every model fails as published; no healing, so all rows
scripts/bench famous run --out FILE [NAME...]  heal the development rows; FILE.md beside it has the table
scripts/bench famous run --held-out --out FILE the other half, which is measured once
scripts/bench famous publish FILE...           write the table of results into the page
scripts/bench famous same --out FILE           whether plan, heal and replay agree on 30 jobs
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

from benchmarks.famous import language, same_answer, vision
from benchmarks.famous.measuring import check, measure
from benchmarks.famous.row import Row
from benchmarks.tables.sections import ROOT, markdown_table, write_section

ROWS = {row.name: row for row in sorted((*language.ROWS, *vision.ROWS), key=lambda row: row.number)}
PAGE = ROOT / "benchmarks" / "famous" / "README.md"
NAMED = ("published", "part", "inside", "line")
HEAD = [
    "model",
    "published place",
    "islands",
    "found",
    "upstream",
    "FLOPs in FP32: ours, upstream",
    "gradient error: ours, upstream",
    "repeated",
    "time relative to FP16, FP32",
    "memory relative to FP16, FP32",
    "loss relative to FP32: ours, upstream; range of FP32 from changed weights",
]


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    match options.command:
        case "check":
            return print_checks(chosen(options.names, list(ROWS.values())), options.steps)
        case "run":
            half = [row for row in ROWS.values() if row.held_out == options.held_out]
            run(chosen(options.names, half), options)
        case "same":
            compare_answers(options.out, options.names)
        case "publish":
            rows = [row for file in options.files for row in json.loads(file.read_text("utf-8"))]
            for held_out, section in ((False, "development"), (True, "held_out")):
                if part := [row for row in rows if row["held_out"] == held_out]:
                    write_section((PAGE, section), table(part))
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench famous",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("check", "run"):
        command = commands.add_parser(name)
        command.add_argument("names", nargs="*", help="rows; without names, all")
        command.add_argument("--steps", type=int, default=200)
        if name == "run":
            command.add_argument("--out", type=Path, required=True, help="file of results, JSON")
            command.add_argument("--held-out", action="store_true")
            command.add_argument("--plan", action="store_true", help="search with `plan` as well")
            command.add_argument("--rounds", type=int, default=5, help="of times")
    same = commands.add_parser("same")
    same.add_argument("names", nargs="*", help="jobs; without names, the first 30")
    same.add_argument("--out", type=Path, required=True, help="file of results, JSON")
    commands.add_parser("publish").add_argument("files", nargs="+", type=Path)
    return parser.parse_args(arguments)


def quiet() -> None:
    """Leave out what packages say about configurations, and the guard about every step."""
    logging.getLogger("halfguard").setLevel(logging.ERROR)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def chosen(names: list[str], rows: list[Row]) -> list[Row]:
    """Return the rows that are named; a row of the other half is refused."""
    if unknown := set(names) - {row.name for row in rows}:
        raise SystemExit(
            f"{', '.join(sorted(unknown))}: not among {', '.join(r.name for r in rows)}"
        )
    return [row for row in rows if not names or row.name in names]


def print_checks(rows: list[Row], steps: int) -> int:
    quiet()
    failed = 0
    for row in rows:
        found = check(row, steps)
        failed += not found.passed
        losses = f"FP32 {found.loss_before:.3f} to {found.loss:.3f}"
        half = "held out" if row.held_out else "development"
        print(
            f"{row.name} ({half}): {'as published' if found.passed else 'NOT as published'}; "
            f"{found.bad} of {found.of} bad, first {found.first}; {losses}; "
            f"largest weight {found.largest_weight:.0f}",
            flush=True,
        )
    return int(failed > 0)


def run(rows: list[Row], options: argparse.Namespace) -> None:
    """Measure rows and write them after each; rows that the file has already are kept."""
    quiet()
    out: Path = options.out
    results: list[dict[str, Any]] = json.loads(out.read_text("utf-8")) if out.exists() else []
    for row in rows:
        if row.name in [result["name"] for result in results]:
            continue
        found = measure(row, options.steps, rounds=options.rounds, with_plan=options.plan)
        results.append(without_nan(asdict(found)))
        out.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", "utf-8")
        out.with_suffix(".md").write_text(table(results) + "\n", "utf-8")
        print(f"{row.name}: {found.verdict}, {found.healed.repeated} repeated", flush=True)


def compare_answers(out: Path, names: list[str]) -> None:
    """Ask plan, heal and replay for the islands of each job; jobs that the file has already are kept."""
    quiet()
    results: dict[str, Any] = json.loads(out.read_text("utf-8")) if out.exists() else {}
    rows = [row for row in ROWS.values() if not row.held_out]
    all_jobs = list(same_answer.jobs(rows))
    jobs = [one for one in all_jobs if one[0] in names] if names else all_jobs[: same_answer.JOBS]
    for name, job, swallowed in jobs:
        if name not in results:
            found = results[name] = same_answer.answers(job, swallowed=swallowed)
            out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
            print(
                name,
                "same" if same_answer.are_equal(found) else f"NOT the same: {found}",
                flush=True,
            )
    equal = sum(map(same_answer.are_equal, results.values()))
    print(f"the same islands, or islands of equal cost: {equal} of {len(results)}")


def without_nan(value: Any) -> Any:
    """Return ``value`` with None for numbers that are not finite, which JSON does not have."""
    if isinstance(value, dict):
        return {key: without_nan(one) for key, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(results: list[dict[str, Any]]) -> str:
    return f"{markdown_table(HEAD, [cells(result) for result in results])}\n\n{summary(results)}"


def summary(results: list[dict[str, Any]]) -> str:
    """Count what the rows have in common; rows without a fix of upstream are not compared with it."""
    flops, loss = [one["flops"] for one in results], [one["loss"] for one in results]
    ends = [[one["loss"]["fp32"], *one["spread"]] for one in results]
    counts = {
        "published place, or a smaller part of it": [one["verdict"] in NAMED for one in results],
        "no more FLOPs in FP32 than upstream": [
            f["ours"] <= f["upstream"] for f in flops if "upstream" in f
        ],
        "at most 5 steps repeated": [one["healed"]["repeated"] <= 5 for one in results],
        "loss within 1% of FP32": [
            one["ours"] is not None and abs(one["ours"] / one["fp32"] - 1) <= 0.01 for one in loss
        ],
        "loss within 1% of the range of FP32 runs from changed weights": [
            one["ours"] is not None and 0.99 * min(end) <= one["ours"] <= 1.01 * max(end)
            for one, end in zip(loss, ends, strict=True)
        ],
    }
    parts = [f"{name}: {sum(held)} of {len(held)}" for name, held in counts.items()]
    return f"{'; '.join(parts)}; median share of FLOPs: {median(f['ours'] for f in flops):.1%}."


def cells(result: dict[str, Any]) -> list[str]:
    row, healed = ROWS[result["name"]], result["healed"]
    islands = [f"`{name or 'the whole model'}`" for name in healed["islands"]]
    islands += [f"line `{line}`" for line in healed["lines"]]

    def pair(values: dict[str, float | None], form: str = ".1%", base: float | None = None) -> str:
        return ", ".join(
            "-"
            if one not in values
            else "not finite"
            if (value := values[one]) is None
            else format(value if base is None else value / base - 1, form)
            for one in ("ours", "upstream")
        )

    loss = result["loss"]
    low, high = (one(result["spread"]) / loss["fp32"] - 1 for one in (min, max))

    def ratios(values: dict[str, float]) -> str:
        return ", ".join(f"{values['ours'] / values[form]:.2f}" for form in ("bare", "fp32"))

    return [
        row.name,
        ", ".join(f"`{place}`" for place in row.places),
        ", ".join(islands) or "none",
        result["verdict"],
        row.fix,
        pair(result["flops"]),
        pair(result["error"], ".2%"),
        str(healed["repeated"])
        + (f" and {healed['scale_fell']}" if healed["scale_fell"] else "")
        + (", then ended" if healed["error"] else ""),
        ratios(result["time"]),
        ratios(result["memory"]),
        pair(result["loss"], "+.1%", base=loss["fp32"]) + f"; {low:+.1%} to {high:+.1%}",
    ]


if __name__ == "__main__":
    sys.exit(main())
