"""Measure ``hg.rounding``.

python -m benchmarks.digits.command predict        healthy models: predicted and measured errors, accusations
python -m benchmarks.digits.command name [FOLDER]  cases of lost digits: rank of the guilty line, and its fix
python -m benchmarks.digits.command why [FOLDER]   silent scripts: whether halfguard why names the guilty line
python -m benchmarks.digits.command mismatch       rollouts with and without a planted cause; 10M weights
python -m benchmarks.digits.command cost           processor time of a report, relative to a plain step
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils._pytree import tree_map

import halfguard as hg
from benchmarks.digits.cases_of import CASES, SCRIPTS, cases
from benchmarks.digits.healthy import Job, repository_models, transformers_models
from benchmarks.digits.rollouts import HEALTHY, PLANTED, large
from halfguard.precision.emulation import autocast_like_cuda
from halfguard.precision.modes import without_autocast
from halfguard.precision_names import Precision
from halfguard.records.rounding import RoundingReport
from halfguard.records.script_answer import ScriptAnswer
from halfguard.report.markdown import to_markdown
from halfguard.report.mismatch import mismatch_page
from halfguard.tracing.rounding import attribute, norm, tape_finite_step

PRECISIONS = {"float16": Precision.FP16_MIXED, "bfloat16": Precision.BF16_MIXED}
FACTOR = 2.0
SEEDS = (0, 1, 2)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("command", choices=("predict", "name", "why", "mismatch", "cost"))
    parser.add_argument("folder", nargs="?", type=Path)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    if options.command == "predict":
        predict()
    elif options.command == "name":
        name(options.folder or CASES)
    elif options.command == "why":
        why(options.folder or SCRIPTS)
    elif options.command == "mismatch":
        judge_mismatch()
    else:
        cost()
    return 0


def predict() -> None:
    """Compare predictions with the same branches, and with a run of the model in float64 on its own."""
    for kind, models in (("repository", repository_models), ("transformers", transformers_models)):
        rows: list[tuple[str, Compared, Compared | None]] = []
        for (known, job), precision in itertools.product(models(), PRECISIONS):
            same, alone = _predict(job, precision)
            rows.append((f"{known} {precision}", same, alone))
            print(f"{rows[-1][0]:45} {_ratios(same)}  alone {_ratios(alone)} {_accused(same[0])}")
        tables = [same for _, same, _ in rows], [alone for _, _, alone in rows if alone]
        for title, pairs in zip(("same branches", "float64 on its own"), tables, strict=True):
            for what, which in (("loss", 1), ("gradients", 2)):
                good = sum(_agree(*pair[which]) for pair in pairs)  # type: ignore[misc]
                print(
                    f"{kind}, {title}: {what} within a factor of {FACTOR:g}: {good} of {len(pairs)}"
                )
        accused = [row[0] for row in rows if row[1][0].findings]
        print(f"{kind}: accused {len(accused)} of {len(rows)} {accused}")


Compared = tuple[RoundingReport, tuple[float, float], tuple[float, float]]


def _predict(job: Job, precision: str) -> tuple[Compared, Compared | None]:
    model, loss_fn, batch = job
    torch.manual_seed(1)
    same = hg.rounding(model, loss_fn, batch, precision=precision)
    measured = _compared(same, same.loss_error, same.gradient_error)
    exact = _in_float64(job)
    if exact is None:
        return measured, None

    def run() -> Any:
        with autocast_like_cuda(PRECISIONS[precision], torch.device("cpu")):
            return loss_fn(model, batch)

    torch.manual_seed(1)
    step = tape_finite_step(run, model, is_fp16=precision == "float16")
    own = attribute(step, getattr(torch, precision), same_branches=False)
    loss, grads = exact
    error = norm(one.wide / step.scale - grad for one, grad in zip(step.grads, grads, strict=True))
    return measured, _compared(own, float(step.loss.wide) - loss, error)


def _compared(report: RoundingReport, loss: float, gradient: float) -> Compared:
    return report, (report.loss_predicted, loss), (report.gradient_predicted, gradient)


def _in_float64(job: Job) -> tuple[float, list[Tensor]] | None:
    """Return loss and gradients of the same code in float64; None if it does not run, or is random."""
    model, loss_fn, batch = job
    wide = copy.deepcopy(model).double()
    wide.zero_grad()
    args = tree_map(lambda t: t.double() if _is_floating(t) else t, batch)
    losses = []
    try:
        for seed in (1, 2):
            torch.manual_seed(seed)
            wide.zero_grad()
            with without_autocast("cpu", "cuda"):
                loss = loss_fn(wide, args)
            loss.backward()
            losses.append(float(loss))
    except (RuntimeError, ValueError):
        return None
    if losses[0] != losses[1] or not math.isfinite(losses[0]):
        return None
    return losses[0], [p.grad for p in wide.parameters() if p.grad is not None]


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _agree(predicted: float, measured: float) -> bool:
    if abs(measured) < 1e-14:
        return abs(predicted) < 1e-10
    return 1 / FACTOR <= predicted / measured <= FACTOR


def _ratios(compared: Compared | None) -> str:
    if compared is None:
        return "    -     -"
    return " ".join(f"{p / m:6.3f}" if m else "     0" for p, m in compared[1:])


def _accused(report: RoundingReport) -> str:
    return f"ACCUSED {report.findings[0].place}" if report.findings else ""


def name(folder: Path) -> None:
    """Say where the guilty line stands in each report, and what FP32 there changes."""
    ranks, found, fixed = [], 0, 0
    for case in cases(folder):
        report = case.report()
        lines = list(dict.fromkeys(row.place for row in report.lines))
        place = f"{case.file}:{case.guilty}"
        rank = lines.index(place) + 1 if place in lines else math.inf
        ranks.append(rank)
        own = next((one for one in report.findings if one.place == place), None)
        found += own is not None
        text = (
            "not reported" if own is None else f"{own.by}, {own.cost / own.must:.1f} times its due"
        )
        if own is not None:
            text += f", in FP32 {own.before:.2g} -> {own.tried:.2g}, of other lines {own.after:.2g}"
            fixed += own.tried <= 2 * own.after
        others = [one.place for one in report.findings if one.place != place]
        print(f"{case.name:32} {report.precision:9} rank {rank}; {text}; others {others}")
    total = len(ranks)
    first, third = sum(rank == 1 for rank in ranks), sum(rank <= 3 for rank in ranks)
    print(f"first {first} of {total}, in the first three {third}, reported {found}, fixed {fixed}")


def why(folder: Path) -> None:
    """Say of each script whether ``halfguard why`` names its guilty line, and which fix was tested."""
    named = 0
    for case in cases(folder):
        command = [sys.executable, "-m", "halfguard", "why", "--json", case.file.name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        answer = ScriptAnswer.from_json(done.stdout)
        cure = "" if answer.cure is None else f"{answer.cure.sentence}, tested: {answer.cure.trial}"
        is_named = (
            f"16-bit rounding at {case.file.name}:{case.guilty} " in f"{cure}{answer.advice} "
        )
        named += is_named
        print(f"{case.name:24} {'named' if is_named else 'missed'}: {cure or answer.advice}")
    print(f"named {named} of {len(list(cases(folder)))}")


def judge_mismatch() -> None:
    """Count planted causes that are named, and healthy pairs that are accused; show a larger policy."""
    named = accused = 0
    for name, (kind, make) in PLANTED.items():
        found = [[one.kind for one in make(seed).causes] for seed in SEEDS]
        named += sum(one == [kind] for one in found)
        print(f"{name:40} {found}", flush=True)
    for name, make_healthy in HEALTHY.items():
        seen = [make_healthy(seed) for seed in SEEDS]
        accused += sum(bool(one.causes) for one in seen)
        print(
            f"healthy, {name:31} {[[c.sentence for c in one.causes] for one in seen]}", flush=True
        )
    total = len(SEEDS)
    print(f"named {named} of {len(PLANTED) * total}, accused {accused} of {len(HEALTHY) * total}")
    start = time.process_time()
    model, report = large()
    spent = time.process_time() - start
    weights = sum(p.numel() for p in model.parameters()) / 1e6
    print(
        f"{weights:.1f}M weights: {1000 * spent / report.tokens:.1f} s of processor time per 1,000 tokens"
    )
    print(to_markdown(mismatch_page(report)))


def cost() -> None:
    """Print the processor time of a report, relative to a plain step in the same precision and in FP32."""
    for width, precision in itertools.product((128, 384), PRECISIONS):
        model, loss_fn, ids = _qwen2(width)
        runs = {
            "plain": partial(_plain, model, loss_fn, ids, PRECISIONS[precision]),
            "fp32": partial(_plain, model, loss_fn, ids, Precision.FP32),
            "own": partial(hg.rounding, model, loss_fn, ids, precision=precision),
        }
        rounds = [{name: _seconds(run) for name, run in runs.items()} for _ in range(4)]
        least = {name: min(each[name] for each in rounds) for name in runs}
        size = sum(p.numel() for p in model.parameters()) / 1e6
        print(
            f"qwen2 {size:.1f}M {precision}: {least['own'] / least['plain']:.1f} times a plain step, "
            f"{least['own'] / least['fp32']:.1f} times one in FP32 ({least['own']:.2f} s)"
        )


def _qwen2(width: int) -> Job:
    torch.manual_seed(0)
    library: Any = transformers
    config = library.Qwen2Config(
        vocab_size=512, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4,
    )  # fmt: skip
    ids = torch.randint(0, 512, (4, 64))
    model = library.Qwen2ForCausalLM(config)
    return model, lambda model, ids: model(input_ids=ids, labels=ids).loss, ids


def _plain(model: Any, loss_fn: Any, batch: Any, precision: Precision) -> None:
    with autocast_like_cuda(precision, torch.device("cpu")):
        loss = loss_fn(model, batch)
    loss.backward()
    model.zero_grad()


def _seconds(run: Any) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(main())
