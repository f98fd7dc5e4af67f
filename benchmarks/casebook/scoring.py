"""Scores: detected, when, the culprit's line, a patch that works, silent on the fix, false alarms.

An alarm counts as a detection only if the cured program does not raise it as well: the same code at a line
with the same text. Until the cured program was run, the case is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.casebook.cases import MOMENTS, Case
from benchmarks.casebook.instruments import INSTRUMENTS, Instrument
from benchmarks.casebook.results import Alarm, Ran, Result
from benchmarks.rate import Rate

NEAR = 1  # lines that a named place may be off
Key = tuple[str, str]


@dataclass(frozen=True)
class Judged:
    """One case under one instrument, or under several taken together."""

    case: Case
    detected: bool = False
    moment: str | None = None
    culprit: bool = False
    silent_on_cure: bool = True
    false_alarm: bool = False
    cured: bool | None = (
        None  # the patch makes the program train; None of an instrument without patches
    )

    @property
    def in_time(self) -> bool:
        """Return whether it was detected as early as it can be seen."""
        if self.moment is None or self.case.healthy:
            return False
        return MOMENTS.index(self.moment) <= MOMENTS.index(self.case.facts["seen_first"])


def judge(case: Case, instrument: Instrument, result: Result | None) -> Judged | None:
    """Judge one result; None if the instrument does not apply, or has not run on all programs."""
    if result is None or not all(path.stem in result.programs for path in case.programs):
        return None
    if case.healthy:
        return Judged(case, false_alarm=bool(result.programs["program"].alarms))
    cured = keys(case, "cured", result.programs["cured"])
    fresh = [
        alarm
        for alarm in result.programs["broken"].alarms
        if key(case, "broken", alarm) not in cured
    ]
    return Judged(
        case,
        detected=bool(fresh),
        moment=instrument.moment if fresh else None,
        culprit=any(names_culprit(case, alarm) for alarm in fresh),
        silent_on_cure=not result.programs["cured"].alarms,
        cured=result.programs["broken"].facts.get("cure works"),
    )


def key(case: Case, program: str, alarm: Alarm) -> Key:
    lines = (case.folder / f"{program}.py").read_text("utf-8").splitlines()
    known = alarm.line is not None and alarm.line <= len(lines)
    return alarm.code, lines[alarm.line - 1].strip() if known and alarm.line else ""


def keys(case: Case, program: str, ran: Ran) -> set[Key]:
    return {key(case, program, alarm) for alarm in ran.alarms}


def names_culprit(case: Case, alarm: Alarm) -> bool:
    """Return whether the alarm names the culprit's line; without a line, its module."""
    if alarm.line is not None:
        return abs(alarm.line - case.culprit_line) <= NEAR
    known = case.facts["culprit"].get("module")
    return bool(known) and alarm.module == known


def together(judged: Iterable[Judged | None]) -> Judged | None:
    """Return what several instruments have found as one; None if none of them applies."""
    some = [one for one in judged if one is not None]
    if not some:
        return None
    moments = [one.moment for one in some if one.moment is not None]
    patched = [one.cured for one in some if one.cured is not None]
    return Judged(
        some[0].case,
        detected=any(one.detected for one in some),
        moment=min(moments, key=MOMENTS.index) if moments else None,
        culprit=any(one.culprit for one in some),
        silent_on_cure=all(one.silent_on_cure for one in some),
        false_alarm=any(one.false_alarm for one in some),
        cured=any(patched) if patched else None,
    )


@dataclass(frozen=True)
class Row:
    """A line of the scoreboard."""

    title: str
    ours: bool
    detected: Rate
    in_time: Rate
    culprit: Rate
    cured: Rate
    silent_on_cure: Rate
    false_alarms: Rate


Results = dict[tuple[str, str], Result]


def rows(cases: list[Case], results: Results) -> list[Row]:
    """Return a row for every instrument with results, and one for all of ours and all of the others'."""
    judged = {
        (case.name, one.name): judge(case, one, results.get((case.name, one.name)))
        for case in cases
        for one in INSTRUMENTS
    }

    def row(title: str, chosen: list[Instrument]) -> Row:
        done = [case for case in cases if is_complete(case, chosen, results)]
        found = [together(judged[case.name, one.name] for one in chosen) for case in done]
        return count(title, chosen[0].ours, [one for one in found if one is not None])

    used = [one for one in INSTRUMENTS if any(judged[case.name, one.name] for case in cases)]
    groups = {
        "halfguard without why": [one for one in used if one.ours and one.name != "why"],
        "halfguard, all": [one for one in used if one.ours],
        "the others, all": [one for one in used if not one.ours],
    }
    listed = [row(one.title, [one]) for one in used]
    return listed + [row(title, chosen) for title, chosen in groups.items() if len(chosen) > 1]


def is_complete(case: Case, instruments: list[Instrument], results: Results) -> bool:
    """Return whether each of the instruments has seen all programs of the case, or does not apply."""
    found = [results.get((case.name, one.name)) for one in instruments]
    stems = {path.stem for path in case.programs}
    return all(one is not None and (one.reason or stems <= set(one.programs)) for one in found)


def count(title: str, ours: bool, judged: list[Judged]) -> Row:
    failing = [one for one in judged if not one.case.healthy]
    healthy = [one for one in judged if one.case.healthy]

    def rate(hit: Callable[[Judged], bool], among: list[Judged]) -> Rate:
        return Rate(sum(map(hit, among)), len(among))

    return Row(
        title,
        ours,
        detected=rate(lambda one: one.detected, failing),
        in_time=rate(lambda one: one.in_time, failing),
        culprit=rate(lambda one: one.culprit, failing),
        cured=rate(lambda one: bool(one.cured), [one for one in failing if one.cured is not None]),
        silent_on_cure=rate(lambda one: one.silent_on_cure, failing),
        false_alarms=rate(lambda one: one.false_alarm, healthy),
    )


def misses(cases: list[Case], results: Results) -> list[str]:
    """Return failing cases of which no instrument of ours says anything; why counts where it has run."""
    ours = [one for one in INSTRUMENTS if one.ours]
    missed = []
    for case in cases:
        found = together(judge(case, one, results.get((case.name, one.name))) for one in ours)
        complete = is_complete(case, [one for one in ours if one.name != "why"], results)
        if complete and not case.healthy and found is not None and not found.detected:
            missed.append(case.name)
    return missed


def false_alarms(cases: list[Case], results: Results) -> list[tuple[str, str, str]]:
    """Return healthy programs, our instruments that call something wrong in them, and what."""
    found = []
    for case in cases:
        for one in INSTRUMENTS:
            result = results.get((case.name, one.name))
            if case.healthy and one.ours and result is not None and "program" in result.programs:
                alarms = result.programs["program"].alarms
                codes = ", ".join(dict.fromkeys(alarm.code for alarm in alarms))
                found += [(case.name, one.title, codes)] if alarms else []
    return found
