"""Measure the answers of ``halfguard why`` on training scripts of other projects, each with a planted fault.

``scripts/bench why_real CHECKOUTS [NAME ...] [--set first|second] [--json] [--fresh] [--out FILE]``.
CHECKOUTS has the repositories that ``real_scripts`` or ``real_scripts_second`` names, as owner/name. Each
script is copied with its fault to a temporary folder, and asked twice: with the fault, and without it,
where no number may be called bad. Results are kept in a JSON file: what was measured before is not run
again, unless ``--fresh``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.why_truth.planting import prepare
from benchmarks.why_truth.real_scripts import PLANT, REAL_SCRIPTS, RealScript
from benchmarks.why_truth.real_scripts_second import SECOND_SET
from benchmarks.why_truth.truth import Case, Measured, ask_in_fork, import_frameworks, measure_in
from halfguard.investigation import Target

SETS = {"first": REAL_SCRIPTS, "second": SECOND_SET}
# Not `evaluate`: a script of the second set has a file of that name.
IMPORTED = (
    "torchvision",
    "timm",
    "datasets",
    "diffusers",
    "lightning.pytorch.cli",
    "transformers.trainer",
    "transformers.models.bert.modeling_bert",
    "transformers.models.llama.modeling_llama",
    "trl.trainer.sft_trainer",
)
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "offline"}


@dataclass
class RealMeasured(Measured):
    """What one script gave, with its fault and without it."""

    step: int | None = None
    without: str = ""  # the outcome of the script without its fault
    source: str = ""


def measure(script: RealScript, checkouts: Path) -> RealMeasured:
    """Ask for a script with its fault, and without it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = prepare(script, checkouts, Path(place).resolve())
        arguments = tuple(shlex.split(script.arguments))
        case = Case(
            name=script.name,
            folder=folder,
            script=Path(script.path).name,
            style=script.style,
            line=script.line,
            fp32=script.fp32,
            cure="",
            held_out=True,
            arguments=arguments,
        )
        os.environ.pop(PLANT, None)
        without = ask_in_fork(Target(name=case.script, arguments=arguments), folder)
        os.environ[PLANT] = "1"
        try:
            measured, answer = measure_in(case, folder)
        finally:
            del os.environ[PLANT]
    inside = f"{folder}{os.sep}"  # paths of temporary folders say nothing
    measured.answer = measured.answer.replace(inside, "")
    said = f"{without.outcome} {without.error[:200]}".strip()
    source = f"{script.source}@{script.version[:12]}"
    return RealMeasured(**asdict(measured), step=answer.step, without=said, source=source)


def table(all_measured: list[RealMeasured]) -> str:
    """Return a row for each script, and the counts, as Markdown."""
    head = ("script", "step", "line", "FP32", "cure applied", "trains on", "without fault", "s")
    rows = [f"| {' | '.join(head)} |", "|" + "--|" * len(head)]
    for one in all_measured:
        yes = ["yes" if x else "no" for x in (one.line, one.fp32, one.applied, one.trains)]
        cells = (one.name, str(one.step), *yes, one.without, str(one.seconds))
        rows.append(f"| {' | '.join(cells)} |")
    marks = ("line", "fp32", "applied", "trains")
    counts = [str(sum(getattr(one, mark) for one in all_measured)) for mark in marks]
    good = sum(one.without == "nothing bad" for one in all_measured)
    rows.append(f"| of {len(all_measured)} | | {' | '.join(counts)} | {good} | |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path, help="folder with repositories, as owner/name")
    parser.add_argument("names", nargs="*", help="beginnings of names")
    parser.add_argument("--set", choices=SETS, default="first")
    parser.add_argument("--json", action="store_true", help="print what was measured as JSON")
    parser.add_argument("--fresh", action="store_true", help="measure again")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir(), "why_real.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        os.environ.update(OFFLINE, HF_HOME=home)
        import_frameworks(IMPORTED)
        found = _measure_all(options)
    print(json.dumps([asdict(one) for one in found], indent=1) if options.json else table(found))


def _measure_all(options: argparse.Namespace) -> list[RealMeasured]:
    out: Path = options.out
    kept = json.loads(out.read_text("utf-8")) if out.is_file() else {}
    found = []
    for script in SETS[options.set]:
        if options.names and not script.name.startswith(tuple(options.names)):
            continue
        if options.fresh or script.name not in kept:
            kept[script.name] = asdict(measure(script, options.checkouts.resolve()))
            out.write_text(json.dumps(kept, indent=1), "utf-8")
        found.append(RealMeasured(**kept[script.name]))
    return found


if __name__ == "__main__":
    main()
