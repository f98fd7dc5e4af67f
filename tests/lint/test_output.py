"""How findings are written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from halfguard.lint.output import FORMATS
from halfguard.lint.run import FileResult
from halfguard.records import Finding
from tests.lint.helper import lint

TEXT = """\
import torch
s = 'é'; x = y.masked_fill(m, -1e9).softmax(0)
scaler = torch.amp.GradScaler()
torch.autograd.set_detect_anomaly(True)
"""


@pytest.fixture
def results() -> list[FileResult]:
    return [FileResult("a file.py", lint(TEXT, "a file.py")), FileResult("empty.py", [])]


def test_text_points_at_the_place(results: list[FileResult]) -> None:
    lines = FORMATS["text"](results).splitlines()
    assert lines[0] == (
        "a file.py:2:31: HG101 [*] -1e9 is outside the float16 range, whose largest value is 65504."
    )
    assert lines[1] == " 2 | s = 'é'; x = y.masked_fill(m, -1e9).softmax(0)"
    assert lines[2].index("^") == lines[1].index("-1e9")
    assert lines[2].count("^") == len("-1e9")
    assert "[*] 1 fixable with --fix." in lines
    assert "[-] 1 fixable with --fix --unsafe-fixes." in lines


def test_a_very_long_line_is_cut_around_the_place() -> None:
    text = f"import torch\nx = '{'a' * 10_000}'; y = z.masked_fill(m, -1e9)\n"
    shown = FORMATS["text"]([FileResult("a.py", lint(text))]).splitlines()
    assert len(shown[1]) < 140
    assert shown[2].index("^") == shown[1].index("-1e9")


def test_json_is_a_list_of_findings(results: list[FileResult]) -> None:
    rows = json.loads(FORMATS["json"](results))
    assert {"code", "path", "line", "column", "message", "fix"} <= rows[0].keys()
    assert rows[0]["fix"] == "torch.finfo(y.dtype).min"
    fields = {name: rows[0][name] for name in Finding.model_fields}
    assert Finding.model_validate(fields).place == "a file.py:2:31"


def test_github_commands_are_escaped(results: list[FileResult]) -> None:
    first = FORMATS["github"](results).splitlines()[0]
    assert first.startswith("::error file=a file.py,line=2,col=31,title=HG101 mask-constant::")


def test_nothing_found() -> None:
    empty = [FileResult("a.py", [])]
    assert FORMATS["text"](empty) == "No problems in 1 file.\n"
    assert FORMATS["json"](empty) == "[]\n"
    assert json.loads(FORMATS["sarif"](empty))["runs"][0]["results"] == []


# What SARIF 2.1.0 requires of the objects that are written here: section, required and known properties.
# The schema itself is not carried along, so this is the part of it that lint uses, written from the text.
KNOWN: dict[str, tuple[set[str], set[str]]] = {
    "sarifLog": ({"version", "runs"}, {"$schema"}),
    "run": ({"tool"}, {"results", "columnKind"}),
    "tool": ({"driver"}, set()),
    "toolComponent": ({"name"}, {"version", "rules"}),
    "reportingDescriptor": (
        {"id"},
        {"name", "shortDescription", "fullDescription", "help", "defaultConfiguration"},
    ),
    "multiformatMessageString": ({"text"}, {"markdown"}),
    "reportingConfiguration": (set(), {"level"}),
    "result": ({"message"}, {"ruleId", "ruleIndex", "level", "locations"}),
    "message": ({"text"}, set()),
    "location": (set(), {"physicalLocation"}),
    "physicalLocation": ({"artifactLocation"}, {"region"}),
    "artifactLocation": ({"uri"}, set()),
    "region": ({"startLine", "startColumn"}, {"endColumn"}),
}


def conforms(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    required, optional = KNOWN[kind]
    assert required <= body.keys() <= required | optional, (kind, body.keys())
    return body


def test_sarif_has_the_required_shape(results: list[FileResult]) -> None:
    log = conforms("sarifLog", json.loads(FORMATS["sarif"](results)))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    conforms("run", run)
    assert run["columnKind"] in {"utf16CodeUnits", "unicodeCodePoints"}
    driver = conforms("toolComponent", conforms("tool", run["tool"])["driver"])
    ids = [conforms("reportingDescriptor", rule)["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    for rule in driver["rules"]:
        for name in ("shortDescription", "fullDescription", "help"):
            conforms("multiformatMessageString", rule[name])
        level = conforms("reportingConfiguration", rule["defaultConfiguration"])["level"]
        assert level in {"none", "note", "warning", "error"}
    for result in run["results"]:
        conforms("message", conforms("result", result)["message"])
        assert ids[result["ruleIndex"]] == result["ruleId"]
        for location in result["locations"]:
            place = conforms("physicalLocation", conforms("location", location)["physicalLocation"])
            assert conforms("artifactLocation", place["artifactLocation"])["uri"] == "a%20file.py"
            region = conforms("region", place["region"])
            assert min(region.values()) >= 1
