"""The page of an acceptance record: the verdict, every check, and the figures behind it."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.records.acceptance import AcceptanceCase, AcceptanceCheck, AcceptanceRecord, Status
from halfguard.records.sizes import format_bytes
from halfguard.report.blocks import Block, Heading, Listing, Page, Table, Text, Tone

_TONES: dict[Status, Tone] = {"passed": "good", "failed": "bad", "not run": ""}
_SHOWN = 20  # failed cases of one check
_LARGEST = 5  # errors of one check


def acceptance_page(record: AcceptanceRecord) -> Page:
    """Return the page of a record."""
    blocks: list[Block] = [
        *_verdict(record),
        Heading("Checks"),
        _checks(record),
        *_remarks(record),
        *(block for check in record.checks for block in _problems(check)),
        *_figures(record),
        *_machine(record),
    ]
    return Page(f"halfguard on {record.device_name}", blocks)


def _verdict(record: AcceptanceRecord) -> Iterator[Block]:
    cases = sum(check.count("passed") for check in record.checks)
    not_run = [check.name for check in record.checks if check.status == "not run"]
    if record.failed:
        names = ", ".join(check.name for check in record.failed)
        yield Text([f"{len(record.failed)} of {len(record.checks)} checks failed: {names}."], "bad")
    else:
        done = len(record.checks) - len(not_run)
        yield Text([f"{done} of {len(record.checks)} checks passed, {cases} cases."], "good")
    if not_run:
        yield Text([f"Not run, so nothing is known: {', '.join(not_run)}."])
    if record.size == "small":
        yield Text(["This was the quick run: fewer and shorter cases. It is no proof for others."])


def _checks(record: AcceptanceRecord) -> Table:
    rows = [
        [
            check.name,
            check.status,
            f"{check.count('passed')} of {len(check.cases)}" if check.cases else "",
            f"{check.seconds:.1f}",
            check.claim,
        ]
        for check in record.checks
    ]
    heads = ("check", "result", "cases passed", "seconds", "what must hold")
    return Table(heads, rows, [_TONES[check.status] for check in record.checks])


def _remarks(record: AcceptanceRecord) -> Iterator[Block]:
    told = [check for check in record.checks if check.reason]
    if told:
        yield Heading("Remarks")
        yield Listing([f"{check.name}, {check.status}: {check.reason}" for check in told])


def _problems(check: AcceptanceCheck) -> Iterator[Block]:
    cases = [case for case in check.cases if case.status == "failed"]
    if not cases:
        return
    yield Heading(f"What failed: {check.name}")
    rows = [[case.name, case.status, case.detail] for case in cases[:_SHOWN]]
    yield Table(("case", "result", "why"), rows, ["bad"] * len(rows))
    if len(cases) > _SHOWN:
        yield Text([f"{len(cases) - _SHOWN} more are in the JSON file."])


def _figures(record: AcceptanceRecord) -> Iterator[Block]:
    found = {check.name: check for check in record.checks}
    if (check := found.get("cost")) and check.cases:
        yield Heading("Cost of the guard")
        yield from _cost(check.cases)
    if (check := found.get("memory")) and check.cases:
        yield Heading("Peak memory of a step")
        heads = ("optimizer", "bare", "guarded", "difference", "allowed")
        yield Table(heads, [_memory_row(case) for case in check.cases])
    if (check := found.get("host syncs")) and check.cases:
        yield Heading("Host syncs per step")
        rows = [
            [case.name, *(f"{case.figures[key]:g}" for key in _WAITS)]
            for case in check.cases
            if _WAITS[0] in case.figures
        ]
        yield Table(("loop", "bare", "guarded"), rows)
    for name in ("autocast", "kernels"):
        if (check := found.get(name)) and check.cases:
            yield Heading(f"Largest errors: {name}")
            yield _largest_errors(check)


_WAITS = ("waits per bare step", "waits per guarded step")


def _cost(cases: tuple[AcceptanceCase, ...]) -> Iterator[Block]:
    added, rows = list[str](), list[list[str]]()
    for case in cases:
        if "guarded over bare" in case.figures:
            seconds = 1000 * case.figures["seconds per bare step"]
            spreads = (_spread(case, name) for name in ("guarded", "bare again"))
            rows.append([case.name, f"{seconds:.3g} ms", *spreads])
        elif "added operations" in case.figures:
            added.append(f"{case.name}: {case.figures['added operations']:g}")
    yield Text([f"For a model of any size: {'; '.join(added)}."])
    yield Table(("", "bare", "guarded over bare", "bare over bare"), rows)
    yield Text(
        ["Ratios of interleaved steps: median and quartiles. The last column shows the noise."]
    )


def _spread(case: AcceptanceCase, name: str) -> str:
    keys = (f"{name} over bare", f"{name}, lower quartile", f"{name}, upper quartile")
    median, low, high = (case.figures[key] for key in keys)
    return f"{median:.3f} [{low:.3f}, {high:.3f}]"


def _memory_row(case: AcceptanceCase) -> list[str]:
    bare, guarded = (int(case.figures[key]) for key in ("bare bytes", "guarded bytes"))
    allowed = format_bytes(int(case.figures["allowed more"]))
    return [case.name, format_bytes(bare), format_bytes(guarded), f"{guarded - bare:+d} B", allowed]


def _largest_errors(check: AcceptanceCheck) -> Table:
    measured = [case for case in check.cases if "error over bound" in case.figures]
    measured.sort(key=lambda case: -case.figures["error over bound"])
    rows = [[case.name, f"{case.figures['error over bound']:.2f}"] for case in measured[:_LARGEST]]
    return Table(("operation", "error over its bound"), rows)


def _machine(record: AcceptanceRecord) -> Iterator[Block]:
    yield Heading("Machine")
    count = f"{record.device_count} x " if record.device_count > 1 else ""
    facts = [f"{count}{record.device_name} ({record.device})"]
    facts += [f"{record.memory:.3g} GB"] if record.memory else []
    facts += [f"capability {record.capability}"] if record.capability else []
    facts += [record.driver] if record.driver else []
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    yield Listing(
        [
            ", ".join(facts),
            f"{record.system}, {versions}",
            f"{record.date}, {record.seconds:.0f} s",
        ]
    )
