"""On every program of the casebook, the instruments that speak name the same failure.

What was recorded is compared: codes of lint, doctor and why, and the causes of the guard. A symptom, such as
an overflow, is no contradiction to its cause.
"""

from __future__ import annotations

import re

from benchmarks.casebook import published
from benchmarks.casebook.cases import all_cases
from benchmarks.casebook.instruments import INSTRUMENTS
from benchmarks.casebook.scoring import key, keys

from halfguard.catalogue import all_entries, entry, old_codes
from halfguard.records import Cause

CAUSES = {str(cause): cause.code for cause in Cause}
BESIDE = {"HD101"}  # the precision that really runs, whatever else is wrong


def codes_of() -> dict[str, dict[str, set[str]]]:
    """Return the codes that each instrument names for a broken program and not for the cured one."""
    results, found = published.read(), dict[str, dict[str, set[str]]]()
    for case in all_cases():
        for instrument in (one.name for one in INSTRUMENTS if one.ours and not case.healthy):
            result = results.get((case.name, instrument))
            if result is None or not {"broken", "cured"} <= set(result.programs):
                continue
            cured = keys(case, "cured", result.programs["cured"])
            alarms = result.programs["broken"].alarms
            named = {
                CAUSES.get(a.code, a.code) for a in alarms if key(case, "broken", a) not in cured
            }
            codes = {old_codes().get(c, c) for c in named if re.fullmatch(r"H[GD]\d{3}", c)}
            if codes:
                found.setdefault(case.name, {})[instrument] = codes
    return found


def test_instruments_name_the_same_failure() -> None:
    known = {one.code for one in all_entries()}
    compared = 0
    for case, by in codes_of().items():
        assert set().union(*by.values()) <= known, case
        causes = [{c for c in codes if not entry(c).symptom} - BESIDE for codes in by.values()]
        causes = [codes for codes in causes if codes]
        compared += len(by) > 1
        assert len(causes) < 2 or set.intersection(*causes), (case, by)
    assert compared >= 35
