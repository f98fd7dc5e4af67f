"""Measure what healing costs in the five example systems, as ratios: `scripts/bench systems --out FILE`.

Bare FP16, FP16 guarded and healed train the same batches in turn, on one thread, in processor seconds, after
the run was healed. Memory is the peak of a step: of one that is applied, and the largest of those in which
the guard repeats a step or looks for a cure.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from halfguard.precision_names import Precision
from halfguard.validation.runs.stepping import GuardedStep
from halfguard.workload import TrainingStep, Workload, load
from halfguard.workload.memory import measure_step_memory
from halfguard.workload.timing import medians, time_interleaved

ROOT = Path(__file__).parents[2]
SYSTEMS = ("accuracy_conditioning", "mmgcn", "sar_distillation", "audio_lora", "dbnet_ocr")
BATCHES = 6  # of one round
UNTIL_HEALED = 40  # steps


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Return ratios of time to bare FP16, and of memory to FP32."""
    os.chdir(folder)
    study = yaml.safe_load(Path("study.yaml").read_text("utf-8"))
    (healed,) = (one["guard"] for one in study["candidates"] if isinstance(one, dict))
    base = {"precision": "fp16-mixed"}
    guarded = base | {key: value for key, value in healed.items() if key != "heal"}
    works = {form: load(study["entry"]) for form in ("fp32", "bare", "guarded", "healed")}
    steps: dict[str, Callable[[Any], Any]] = {
        "fp32": TrainingStep(works["fp32"], Precision.FP32),
        "bare": TrainingStep(works["bare"], Precision.FP16_MIXED),
        "guarded": GuardedStep(works["guarded"], Precision.FP16_MIXED, guarded),
        "healed": GuardedStep(works["healed"], Precision.FP16_MIXED, base | healed),
    }
    batches = list(works["healed"].take(UNTIL_HEALED))
    peaks: dict[str, list[int]] = {form: [] for form in steps}
    guard = steps["healed"].guard  # type: ignore[attr-defined]
    for count, batch in enumerate(batches, 1):
        peaks["healed"].append(peak(steps["healed"], works["healed"], batch))
        if guard.state_dict()["healing"]["healed"] and count > 3:
            break
    for form in ("fp32", "bare"):
        peaks[form] = [peak(steps[form], works[form], batch) for batch in batches[:3]][1:]
    after = batches[count : count + BATCHES] or batches[:BATCHES]
    steady = [peak(steps["healed"], works["healed"], batch) for batch in after[:3]]
    runs = {form: partial(all_of, step, after) for form, step in steps.items() if form != "fp32"}
    seconds = medians(time_interleaved(runs, rounds=rounds, clock=time.process_time))
    return {
        "time guarded": seconds["guarded"] / seconds["bare"],
        "time healed": seconds["healed"] / seconds["bare"],
        "memory bare": max(peaks["bare"]) / max(peaks["fp32"]),
        "memory healed": min(steady) / max(peaks["fp32"]),
        "memory repeated": max(peaks["healed"]) / max(peaks["fp32"]),
    }


def peak(step: Callable[[Any], Any], work: Workload, batch: Any) -> int:
    run = partial(step, batch)
    found = measure_step_memory(run, model=work.model, optimizer=work.optimizer, device=work.device)
    return found.peak


def all_of(step: Callable[[Any], Any], batches: list[Any]) -> None:
    for batch in batches:
        step(batch)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", choices=SYSTEMS, help="only this one; print its ratios as JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    return parser


def main() -> None:
    """Measure each system in a process of its own: their modules have the same names."""
    options = make_parser().parse_args()
    if options.system is not None:
        logging.getLogger("halfguard").setLevel(logging.ERROR)
        torch.set_num_threads(1)
        print(json.dumps(measure(ROOT / "examples" / options.system, options.rounds)))
        return
    results = {}
    for name in SYSTEMS:
        command = [sys.executable, "-m", "benchmarks.timings.systems", "--system", name]
        command += ["--rounds", str(options.rounds)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results[name] = json.loads(done.stdout.splitlines()[-1])
        print(name, results[name], flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
