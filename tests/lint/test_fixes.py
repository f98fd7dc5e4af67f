"""Fixes: idempotent, parsing, keeping comments; and for every safe one, broken before and right after."""

from __future__ import annotations

import ast
import re
import warnings
from difflib import unified_diff
from pathlib import Path
from typing import Any

from halfguard.catalogue import entry
from halfguard.lint.registry import all_rules
from tests.lint.helper import FIXTURES, codes, fix, lint
from tests.support.cases import each

PROGRAMS = Path(__file__).parent / "programs"
BAD = sorted(FIXTURES.glob("*/bad*.py"))
SAFE = [rule.code for rule in all_rules() if entry(rule.code).fix == "safe"]


@each("path", BAD)
def test_a_fix_parses_is_idempotent_and_keeps_comments(path: Path) -> None:
    before = path.read_bytes()
    once = fix(before)
    if once.applied:
        ast.parse(once.data)
    again = fix(once.data)
    assert (again.applied, again.data) == (0, once.data)
    comments = re.findall(rb"#(?! expect)[^\n]*", before)
    assert all(comment in once.data for comment in comments)


def test_what_is_fixed_is_what_was_written_down() -> None:
    """``fixes.diff`` has what all fixes change in the bad files."""
    lines: list[str] = []
    for path in BAD:
        before, once = path.read_bytes(), fix(path.read_bytes())
        assert bool(once.applied) == (once.data != before), path
        old, new = (data.decode().splitlines(keepends=True) for data in (before, once.data))
        lines += unified_diff(old, new, str(path.relative_to(FIXTURES)), "fixed", n=0)
    assert "".join(lines) == (FIXTURES.parent / "fixes.diff").read_text()


def test_a_rule_that_says_it_fixes_does() -> None:
    for rule in all_rules():
        kinds = {
            d.fix.kind
            for path in sorted((FIXTURES / rule.code).glob("bad*"))
            for d in lint(path.read_bytes(), path.name)
            if d.fix and d.code == rule.code
        }
        assert bool(kinds) == bool(kind := entry(rule.code).fix), rule.code
        assert kind is None or kind in kinds


def _is_right(source: bytes) -> bool:
    """Run a program; raising, also a warning, is as wrong as a wrong answer."""
    namespace: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            exec(compile(source, "program", "exec"), namespace)
            return bool(namespace["run"]())
        except (RuntimeError, AssertionError, Warning):
            return False


SCALED, STEP, UPDATE = "scaler.scale(loss).backward()", "scaler.step(optimizer)", "scaler.update()"
CLIPPED = "torch.nn.utils.clip_grad_norm_([weight], 1.0)  # at most 1"
LOOPS: dict[str, tuple[list[str], int, float]] = {  # after the loss; steps; the right weight
    "HG201": ([SCALED, CLIPPED, STEP, UPDATE], 1, 0.9),  # no movement before, 0.1 after
    "HG205": ([SCALED, "optimizer.step()", UPDATE], 1, 0.0),  # a thousand times too far before
    "HG206": (["loss.backward()", STEP, UPDATE], 2, -1.0),  # a thousandth of the step before
}


def _program(code: str) -> bytes:
    if code not in LOOPS:
        return (PROGRAMS / f"{code}.py").read_bytes()
    body, steps, weight = LOOPS[code]
    text = (PROGRAMS / "loop.py").read_text().replace("BODY", "\n        ".join(body))
    return text.replace("STEPS", str(steps)).replace("WEIGHT", str(weight)).encode()


@each("code", SAFE)
def test_a_safe_fix_cures(code: str) -> None:
    before = _program(code)
    assert not _is_right(before)
    after = fix(before, "safe")
    assert after.applied
    assert code not in codes(after.data)
    assert _is_right(after.data)


def test_an_unsafe_fix_waits_to_be_asked() -> None:
    text = (
        "import torch\nscaler = torch.amp.GradScaler()\ntorch.autograd.set_detect_anomaly(True)\n"
    )
    assert fix(text, "safe").applied == 0
    assert b"set_detect_anomaly(True)" not in fix(text, "safe", "unsafe").data


def test_a_missing_import_is_added_after_the_docstring() -> None:
    text = '"""Doc."""\n\nfrom torch.cuda.amp import GradScaler\n\nscaler = GradScaler()\n'
    fixed = fix(text).data.decode()
    assert fixed.startswith('"""Doc."""\n')
    assert "import torch\n" in fixed
    assert 'scaler = torch.amp.GradScaler("cuda")\n' in fixed


@each(
    ("head", "wanted"),
    [
        ("", "import torch\n"),
        ("# c\n\n@wrap\n", "# c\n\nimport torch\n@wrap\n"),
        ('"""Doc."""\n', '"""Doc."""\nimport torch\n'),
        (
            "import os\nfrom a import (\n    b,\n)\n\n",
            "import os\nfrom a import (\n    b,\n)\nimport torch\n\n",
        ),
        (
            "from __future__ import annotations\r\n",
            "from __future__ import annotations\r\nimport torch\r\n",
        ),
    ],
)
def test_a_missing_import_is_added_below_the_others(head: str, wanted: str) -> None:
    end = "\r\n" if "\r" in head else "\n"
    text = f"def f(x, m):  # torch{end}    return x.masked_fill(m, -1e9).softmax(-1){end}"
    fixed = fix(f"{head}{text}").data.decode()
    assert fixed == wanted + text.replace("-1e9", "torch.finfo(x.dtype).min")


@each(
    "text",
    [
        "import torch\ndef f(x, m): x.masked_fill_(m, -1e9); return x\n",
        "import torch\r\ndef f(x, m):\r\n    return x.masked_fill(m, -1e9)  # é\r\n",
        "# -*- coding: latin-1 -*-\nimport torch\ns = 'é'; x = y.masked_fill(m, -1e9)\n",
        "\ufeffimport torch\nx = y.masked_fill(m, -1e9)\n",
        "import torch\nif 1: s = '日本'; x = y.masked_fill(m, -1e9)\n",
        "import torch\n\x0cx = y.masked_fill(m, -1e9)\n",
    ],
)
def test_odd_files_are_fixed_in_place(text: str) -> None:
    encoding = "latin-1" if "latin-1" in text else "utf-8"
    data = text.encode(encoding)
    fixed = fix(data).data
    name = "x" if "def f" in text else "y"
    wanted = text.replace("-1e9", f"torch.finfo({name}.dtype).min").encode(encoding)
    assert fixed == wanted


def test_a_comment_inside_is_not_lost() -> None:
    text = (
        "import torch\ndef f(x, y):\n    with torch.autocast('cuda'):\n        return "
        "torch.nn.functional.binary_cross_entropy(  # why\n            torch.sigmoid(  # why\n x), y)\n"
    )
    assert codes(text) == ["HG107"]
    assert fix(text).applied == 0


def test_many_places_of_one_file_are_fixed_at_once() -> None:
    line = "    x = x.masked_fill(m, -1e9).softmax(-1)\n"
    done = fix(f"import torch\ndef f(x, m):\n{line * 30}    return x\n")
    assert (done.applied, done.remaining) == (30, [])


@each("test", ["self.fp16", "(self.batch + 1) % self.accumulation == 0"])
def test_unscaling_is_not_inserted_where_no_step_may_follow(test: str) -> None:
    text = (
        "import torch\nclass T:\n    def one(self, loss):\n"
        "        if self.fp16:\n            self.scaler.scale(loss).backward()\n"
        "        else:\n            loss.backward()\n"
        "        torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)\n"
        f"        if {test}:\n            self.scaler.step(self.optimizer)\n"
        "            self.scaler.update()\n"
    )
    done = fix(text)
    assert (done.data.decode(), [d.code for d in done.remaining]) == (text, ["HG201"])


def test_two_clips_of_a_step_are_unscaled_once() -> None:
    text = (
        "import torch\ndef f(a, b, scaler, optimizer, loader):\n    for x in loader:\n"
        "        scaler.scale(a(x)).backward()\n"
        "        torch.nn.utils.clip_grad_norm_(a.parameters(), 1.0)\n"
        "        torch.nn.utils.clip_grad_norm_(b.parameters(), 1.0)\n"
        "        scaler.step(optimizer)\n        scaler.update()\n"
    )
    done = fix(text, "safe")
    assert done.remaining == []
    assert done.data.count(b"scaler.unscale_(optimizer)") == 1
