"""The code of the failure that an answer is about, in the catalogue that all instruments share."""

from __future__ import annotations

from collections.abc import Sequence

from halfguard.investigation.crashes import Crash
from halfguard.investigation.passes import Made, Misused
from halfguard.records.autopsy import Culprit
from halfguard.records.script_answer import ScriptAnswer

_CULPRITS = {"input": "HG612", "parameter": "HG613", "buffer": "HG613"}


def name_failure(answer: ScriptAnswer, misused: Sequence[Misused]) -> str:
    """Return the code: that of the recommended fix, else that of what was seen; empty if nothing is wrong."""
    if answer.cure is not None and answer.cure.code:
        return answer.cure.code
    if answer.outcome == "bad number" and answer.culprit is not None:
        return _code_of_culprit(answer.culprit)
    known = [Crash(answer.error, None, Made()).code, *(one.code for one in misused)]
    if any(one.fault == "overflow" and one.use != "none" for one in answer.swallowed):
        known.append("HG609")
    return next(filter(None, known), "")


def _code_of_culprit(culprit: Culprit) -> str:
    if culprit.op.startswith("nll_loss") or "ctc_loss" in culprit.op:
        return "HG612"
    backward = "HG611" if culprit.phase == "backward" else "HG601"
    return _CULPRITS.get(culprit.kind, backward)
