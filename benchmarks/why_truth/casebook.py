"""Run ``halfguard why`` over a casebook, and compare the line and the verdict on FP32 with what is known.

``scripts/soak why [FOLDER] [--held-out] [--cured] [NAME...]``. Each case is a folder with ``broken.py``,
``cured.py`` and ``case.yaml``. About a third is held out, by a hash of the name: nobody looks at those while
the instrument is changed. Only cases whose symptom is a bad number count; the others are listed.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import tempfile
from pathlib import Path

import yaml
from tests.investigation.command import why

from halfguard.records.script_answer import ScriptAnswer

BAD_NUMBER = {"nan loss", "inf loss", "skips forever", "nan weights", "nan gradients"}


def is_held_out(name: str) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] % 3 == 0


def ask(case: Path, script: str) -> ScriptAnswer:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / case.name
        shutil.copytree(case, folder)
        done = why("--json", script, cwd=folder)
    if done.returncode not in (0, 1):
        return ScriptAnswer(script=script, outcome="crashed", error=done.stderr[-300:])
    return ScriptAnswer.from_json(done.stdout)


def compare(case: Path) -> tuple[bool, bool, str]:
    """Return whether the line and the verdict are right, and what was answered."""
    known = yaml.safe_load((case / "case.yaml").read_text("utf-8"))
    answer = ask(case, "broken.py")
    found = answer.culprit
    code = "" if found is None else found.code.partition("  #")[0].strip()
    wanted = known["culprit"]["line"]
    line = bool(code) and (code in wanted or wanted in code)
    line = line or wanted in (answer.advice if answer.cure is None else answer.cure.sentence)
    text = f"{answer.outcome}, step {answer.step}: {found.op if found else None} `{code}`, "
    text += f"FP32 {answer.in_fp32}"
    return line, answer.in_fp32 == known["fp32"], text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path("benchmarks/casebook/programs")
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument(
        "--cured", action="store_true", help="run the cured scripts: none may be bad"
    )
    options = parser.parse_args()
    cases = [path.parent for path in sorted(options.folder.glob("*/case.yaml"))]
    cases = [c for c in cases if is_held_out(c.name) is options.held_out]
    cases = [c for c in cases if not options.names or c.name.startswith(tuple(options.names))]
    counts = {"cases": 0, "line": 0, "fp32": 0, "called bad": 0}
    for case in cases:
        known = yaml.safe_load((case / "case.yaml").read_text("utf-8"))
        if options.cured:
            bad = ask(case, "cured.py")
            counts["cases"] += 1
            counts["called bad"] += bad.outcome == "non-finite value"
            print(f"{case.name}: {bad.outcome} {bad.event}", flush=True)
        elif known["symptom"] in BAD_NUMBER or options.names:
            line, fp32, text = compare(case)
            counts["cases"] += 1
            counts["line"] += line
            counts["fp32"] += fp32
            marks = f"line {'right' if line else 'WRONG'}, FP32 {'right' if fp32 else 'WRONG'}"
            print(f"{case.name}: {marks} ({text})", flush=True)
        else:
            print(f"{case.name}: not asked, its symptom is {known['symptom']}", flush=True)
    print(", ".join(f"{name} {count}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
