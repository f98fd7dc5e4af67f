"""Measure the answers of ``halfguard why``: the right line, the right verdict on FP32, and a cure that works.

``scripts/bench why_truth [NAME ...] [--set field|casebook] [--held-out | --seen] [--fresh] [--out FILE]``, or
``scripts/bench why_truth --healthy [NAME ...] [--held-out]`` for healthy programs. The failing
scripts are the casebook's programs whose symptom is a bad number, and those in ``field`` beside this
file. The patch of each answer is applied to a copy of the script, which must then run to its end without a
bad number, beyond the step that failed. Results are kept in a JSON file: what was measured before is not run
again, unless ``--fresh``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.support.docs import ROOT

from benchmarks.why_truth.casebook import BAD_NUMBER
from halfguard.investigation import Target, investigate
from halfguard.investigation.investigating import Investigation
from halfguard.investigation.passes import PassResult
from halfguard.investigation.working_copy import WorkingCopy
from halfguard.records.autopsy import is_source_patch
from halfguard.records.script_answer import ScriptAnswer

FIELD = Path(__file__).parent / "field"
CASEBOOK = ROOT / "benchmarks/casebook/programs"
FRAMEWORKS = ("lightning", "transformers", "accelerate", "peft", "trl")
STYLES = {"0": "plain", "1": "lightning", "2": "trainer", "3": "accelerate", "4": "trl or peft"}


@dataclass(frozen=True)
class Case:
    """A failing script, and what is known of it."""

    name: str
    folder: Path
    script: str
    style: str
    line: str
    fp32: str
    cure: str
    held_out: bool
    arguments: tuple[str, ...] = ()


@dataclass
class Measured:
    """What one case gave."""

    name: str
    style: str
    held_out: bool
    line: bool = False
    fp32: bool = False
    cure: str = ""  # its kind; "advice" without a trial
    applied: bool = False  # the patch fits the script
    trains: bool = False  # and the script trains on
    answer: str = ""
    after: str = ""  # the answer for the patched script
    seconds: float = 0.0


def cases() -> Iterator[Case]:
    """Return all cases: those of the casebook first."""
    for path in sorted(CASEBOOK.glob("*/case.yaml")):
        known = _facts(path)
        if known["symptom"] in BAD_NUMBER:
            style = STYLES[path.parent.name[0]]
            yield _case(path, known, script="broken.py", style=style, held_out=False)
    for path in sorted(FIELD.glob("*/case.yaml")):
        known = _facts(path)
        held_out = bool(known.get("held_out"))
        yield _case(path, known, script="train.py", style=known["style"], held_out=held_out)


def _facts(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return facts


def _case(path: Path, known: dict[str, Any], *, script: str, style: str, held_out: bool) -> Case:
    return Case(
        name=path.parent.name,
        folder=path.parent,
        script=script,
        style=style,
        line=known["culprit"]["line"],
        fp32=known["fp32"],
        cure=known["cure"],
        held_out=held_out,
    )


def measure(case: Case) -> Measured:
    """Ask for a copy of one script, and for the same one with the patch applied."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve() / case.name
        shutil.copytree(case.folder, folder, ignore=shutil.ignore_patterns("case.yaml", "cured.py"))
        return measure_in(case, folder)[0]


def measure_in(case: Case, folder: Path) -> tuple[Measured, ScriptAnswer]:
    """Ask for a script in a folder, and for the same one with the patch applied there."""
    started = time.monotonic()
    measured = Measured(case.name, case.style, case.held_out)
    target = Target(name=case.script, arguments=case.arguments)
    answer = ask_in_fork(target, folder)
    measured.answer = _in_words(answer)
    measured.line = names_line(answer, case)
    measured.fp32 = answer.in_fp32 == case.fp32
    measured.cure = "advice" if answer.cure is None else answer.cure.what
    patch = "" if answer.cure is None else answer.cure.patch
    measured.applied = is_source_patch(patch) and apply(patch, folder)
    if measured.applied:
        after = _run(target, folder)
        event = "no event" if after.event is None else f"{after.event.how}, step {after.event.step}"
        measured.after = f"{after.ended} {after.error[:200]}; {event}; {after.steps} steps"
        measured.trains = trains_on(after, answer)
    measured.seconds = round(time.monotonic() - started, 1)
    return measured, answer


def names_line(answer: ScriptAnswer, case: Case) -> bool:
    """Return whether the answer names the line that a user must change: as the origin, or in its cure."""
    found = answer.culprit
    code = "" if found is None else found.code.partition("  #")[0].strip()
    if code and (code in case.line or case.line in code):
        return True
    said = answer.advice if answer.cure is None else answer.cure.sentence
    changed = "" if answer.cure is None else answer.cure.patch
    removed = [line[1:].strip() for line in changed.splitlines() if line.startswith("-")]
    return case.line in said or case.line in removed


def trains_on(after: PassResult, before: ScriptAnswer) -> bool:
    """Return whether a script ended without a bad number, beyond the step that failed."""
    further = after.backward > (before.bad_backward or 0) and after.steps > (before.step or 0)
    return further and after.event is None and after.ended in ("finished", "exited")


def apply(patch: str, folder: Path) -> bool:
    """Apply a unified diff with paths below the folder."""
    done = subprocess.run(
        ["patch", "-p1", "--no-backup-if-mismatch"],
        cwd=folder,
        input=patch + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0


def ask_in_fork(target: Target, folder: Path) -> ScriptAnswer:
    """Return the whole answer for a script."""
    text = _in_fork(folder, lambda: investigate(target).to_json())
    if not text:
        return ScriptAnswer(script=str(target), outcome="crashed", error="no answer")
    return ScriptAnswer.from_json(text)


def _run(target: Target, folder: Path) -> PassResult:
    """Run a script to its end, or to its first bad number."""

    def run() -> str:
        place = folder.parent / "pass"
        place.mkdir(exist_ok=True)
        copy = WorkingCopy(place / "copy", (folder,))
        one = Investigation(target, folder, place, lambda *_: None, copy=copy)
        return one.run("sense", "running").model_dump_json()

    text = _in_fork(folder, run)
    return PassResult.model_validate_json(text) if text else PassResult()


def _in_fork(folder: Path, work: Callable[[], str]) -> str:
    """Run in a fork of this process, which has imported the frameworks: that saves most of the time."""
    path = folder.parent / "result.json"
    path.unlink(missing_ok=True)
    pid = os.fork()
    if not pid:
        try:
            os.chdir(folder)
            path.write_text(work(), "utf-8")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return path.read_text("utf-8") if path.is_file() else ""


def _in_words(answer: ScriptAnswer) -> str:
    found = answer.culprit
    where = "" if found is None else f": {found.kind} {found.op or found.name} `{found.code}`"
    said = answer.advice if answer.cure is None else answer.cure.sentence
    error = f" ({answer.error[:200]})" if answer.error else ""
    tried = "; ".join(
        f"{one.name}: {'good' if one.good else 'bad'} {one.note}".strip() for one in answer.trials
    )
    said += f" [{tried}]" if tried else ""
    return f"{answer.outcome}, step {answer.step}{where}, FP32 {answer.in_fp32}{error}. {said}"


def import_frameworks(names: Iterable[str] = FRAMEWORKS) -> None:
    """Import what scripts use, for all forks of this process."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def table(all_measured: list[Measured]) -> str:
    """Return the counts by style, as Markdown."""
    rows = ["| scripts | | right line | right on FP32 | cure applied, trains on |", "|" + "--|" * 5]
    groups = [*dict.fromkeys(one.style for one in all_measured), "held out", "all"]
    for group in groups:
        chosen = [
            one
            for one in all_measured
            if group in (one.style, "all") or (group == "held out" and one.held_out)
        ]
        if chosen:
            counts = Counter(
                k for one in chosen for k in ("line", "fp32", "trains") if getattr(one, k)
            )
            figures = " | ".join(str(counts[kind]) for kind in ("line", "fp32", "trains"))
            rows.append(f"| {group} | {len(chosen)} | {figures} |")
    return "\n".join(rows)


def _misses(all_measured: list[Measured]) -> Iterator[str]:
    for one in all_measured:
        wrong = [
            what
            for what, right in (
                ("line", one.line),
                ("FP32", one.fp32),
                (f"cure ({one.cure}{', applied' if one.applied else ''})", one.trains),
            )
            if not right
        ]
        if wrong:
            after = f" Patched: {one.after}" if one.after else ""
            yield f"{one.name}: {', '.join(wrong)}. {one.answer}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of names")
    parser.add_argument("--set", choices=("field", "casebook"))
    parser.add_argument("--held-out", action="store_true", help="only scripts that are held out")
    parser.add_argument("--seen", action="store_true", help="only scripts that are not held out")
    parser.add_argument("--healthy", action="store_true", help="ask for the healthy programs")
    parser.add_argument("--fresh", action="store_true", help="measure again")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir(), "why_truth.json"))
    options = parser.parse_args()
    import_frameworks()
    if options.healthy:
        from benchmarks.why_truth import healthy

        healthy.main(options.names, is_held_out=options.held_out)
        return
    kept = json.loads(options.out.read_text("utf-8")) if options.out.is_file() else {}
    found = list[Measured]()
    for case in cases():
        if options.names and not case.name.startswith(tuple(options.names)):
            continue
        if options.set and (case.folder.parent == FIELD) is not (options.set == "field"):
            continue
        if (options.held_out and not case.held_out) or (options.seen and case.held_out):
            continue
        if options.fresh or case.name not in kept:
            kept[case.name] = asdict(measure(case))
            part = options.out.with_suffix(".part")
            part.write_text(json.dumps(kept, indent=1), "utf-8")
            part.replace(options.out)
            print(f"{case.name}: {kept[case.name]['seconds']} s", flush=True)
        found.append(Measured(**kept[case.name]))
    print("\n".join(_misses(found)))
    print(table(found))


if __name__ == "__main__":
    main()
