"""Search plans for ten models that overflow in half: the table in benchmarks/plans.md."""

from __future__ import annotations

import math

from examples.overflowing import JOBS

from benchmarks.tables.sections import ROOT, markdown_table, rows_of_section, write_section
from halfguard.probing.plan_search import plan
from halfguard.records.plan import PrecisionPlan
from halfguard.workload import load

TABLE = (ROOT / "benchmarks" / "plans.md", "plan_table")
HEAD = ["job", "modules", "islands", "trials", "allowed", "loss, FP32", "loss, plan", "apart"]
STEPS, TOLERANCE = 24, 0.01


def search(name: str) -> PrecisionPlan:
    return plan(load(f"{ROOT}/examples/overflowing.py:{name}"), steps=STEPS, tolerance=TOLERANCE)


def allowed(found: PrecisionPlan) -> int:
    assert found.evidence is not None
    return math.floor(
        3 * math.log2(found.evidence.modules) * (len(found.islands) + len(found.lines))
    )


def cells(name: str, found: PrecisionPlan) -> list[str]:
    evidence = found.evidence
    assert evidence is not None
    rescaled = {"rescaled": " (rescaled)", "fp32": ""}
    names = [f"`{one.module}`{rescaled[one.kind]}" for one in found.islands]
    names += [f"line `{one.code}`{rescaled[one.kind]}" for one in found.lines]
    islands = ", ".join(names)
    counts = [str(evidence.modules), islands, str(evidence.trials), str(allowed(found))]
    losses = [f"{evidence.loss_fp32:.4f}", f"{evidence.loss:.4f}", f"{evidence.deviation:.2%}"]
    return [f"`{name}`", *counts, *losses]


def update(*, check: bool) -> list[str]:
    """Write the table, or return what is wrong: other islands, or a search that exceeds its limits."""
    plans = {name: search(name) for name in JOBS}
    if not check:
        write_section(TABLE, markdown_table(HEAD, [cells(n, found) for n, found in plans.items()]))
    problems = []
    # Last digits of losses differ between machines; the islands do not.
    expected = [cells(name, found)[:5] for name, found in plans.items()]
    if [line[:5] for line in rows_of_section(TABLE)] != expected:
        problems.append("the page lists other islands or trials")
    for name, found in plans.items():
        assert found.evidence is not None
        if not found.evidence.deviation <= TOLERANCE:
            problems.append(f"{name} is {found.evidence.deviation:.2%} from FP32")
        if found.evidence.trials > allowed(found):
            problems.append(f"{name} took {found.evidence.trials} trials, allowed {allowed(found)}")
    return problems
