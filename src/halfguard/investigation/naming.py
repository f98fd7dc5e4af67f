"""The code of the failure that an answer is about, in the catalogue that all instruments share."""

from __future__ import annotations

from collections.abc import Sequence

from halfguard.investigation.crashes import Crash
from halfguard.investigation.passes import Made, Misused, MisuseKind
from halfguard.records.autopsy import Culprit
from halfguard.records.script_answer import ScriptAnswer

_MISUSE: dict[MisuseKind, str] = {
    "clipped": "HG201",
    "schedule": "HG304",
    "not scaled": "HG206",
    "other scaler": "HG206",
    "penalty": "HG213",
    "scaler off": "HD113",
    "not zeroed": "HG215",
    "no scaler": "HG207",
    "rounded integers": "HG117",
    "lost updates": "HG402",
    "bad buffer": "HD108",
    "swallowed": "HG609",
}
_CULPRITS = {"input": "HG612", "parameter": "HG613", "buffer": "HG613"}


def name_failure(answer: ScriptAnswer, misused: Sequence[Misused]) -> str:
    """Return the code: that of the recommended fix, else that of what was seen; empty if nothing is wrong."""
    if answer.cure is not None and answer.cure.code:
        return answer.cure.code
    if answer.outcome == "bad number" and answer.culprit is not None:
        return _code_of_culprit(answer.culprit)
    known = [Crash(answer.error, None, Made()).code, *map(code_of_misuse, misused)]
    if any(one.fault == "overflow" and one.use != "none" for one in answer.swallowed):
        known.append("HG609")
    return next(filter(None, known), "")


def code_of_misuse(one: Misused) -> str:
    """Return the code of a use of torch that trains wrongly; if an error was caught, that of the error."""
    return _MISUSE.get(one.kind) or Crash(one.error, None, Made()).code


def _code_of_culprit(culprit: Culprit) -> str:
    if culprit.op.startswith("nll_loss"):
        return "HG612"
    backward = "HG611" if culprit.phase == "backward" else "HG601"
    return _CULPRITS.get(culprit.kind, backward)
