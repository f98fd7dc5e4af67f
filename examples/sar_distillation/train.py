"""Distil with one mode: ``python train.py --mode balanced --train_steps 500 --eval_steps 50 ...``."""

import argparse
import itertools
import logging
import resource
from pathlib import Path

import before
import torch
import yaml
from model import VARIANTS

import halfguard as hg
from workload import job, loss_fn

CONFIG = yaml.safe_load((Path(__file__).parent / "config.yaml").read_text())
FLAGS = ("student_lr", "router_lr", "temperature", "alpha_kd", "alpha_ce", "max_norm", "skip_above")


def read_flags(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=CONFIG["modes"], default="from_scratch")
    parser.add_argument("--variant", choices=VARIANTS, default="cured")
    parser.add_argument("--model_dtype", choices=["float32", "float16"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run_dir", type=Path)
    parser.add_argument("--heal", action="store_true")
    for name in ("precision", "train_steps", "eval_steps", "per_device_batch_size"):
        parser.add_argument(f"--{name}", type=type(CONFIG[name]), default=CONFIG[name])
    for name in FLAGS:
        parser.add_argument(f"--{name}", type=float, help="instead of the mode's value")
    flags = parser.parse_args(arguments)
    given = {name: getattr(flags, name) for name in FLAGS if getattr(flags, name) is not None}
    flags.values = CONFIG["modes"][flags.mode] | given
    return flags


def make_guard(work, flags):
    """Guard the student. With FP16 weights, the optimizer gets FP32 masters: nothing is rounded away."""
    config = CONFIG["guard"] | {"precision": flags.precision}
    config["clip"] = {"max_norm": flags.values["max_norm"]}
    config["skip"] = config["skip"] | {"max_grad_norm": flags.values["skip_above"]}
    if flags.model_dtype == "float16":
        work.model.half()
        work.optimizer = hg.MasterWeights(work.optimizer)
        config["precision"] = "fp16-weights"
        config["skip"] = config["skip"] | {"on_nonfinite": "skip"}
    if flags.heal:
        config["heal"] = {}
    entry = f"workload.py:{'job' if flags.variant == 'cured' else flags.variant}"
    return hg.Guard(work.model, work.optimizer, config, run_dir=flags.run_dir, entry=entry)


def peak_gb():
    """Return the largest memory so far: of the GPU, or of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def validate(work, guard, best, told):
    """Print where the run is; keep the student if it is the best so far. Return the fallbacks so far."""
    work.model.eval()
    with guard.autocast():
        perplexity = work.evaluate(work.model)["perplexity"].item()
    work.model.train()
    kept = best is not None and best.update({"student": work.model.student}, perplexity)
    fallbacks = work.model.kd_fallbacks.item()
    memory, budget = peak_gb(), CONFIG["memory_budget_gb"]
    print(
        f"step {guard.step_index}: perplexity {perplexity:.2f}{' (best)' if kept else ''}, "
        f"{guard.counts.success_rate:.0%} of steps applied, {fallbacks} of them without KD, "
        f"memory {memory:.2f} of {budget:g} GB"
    )
    if fallbacks > told:
        guard.note(f"KD was not finite in {fallbacks - told} steps: they learnt by CE alone")
    if memory > budget:
        raise SystemExit(
            f"{memory:.2f} GB is above the budget of {budget:g} GB: use smaller batches."
        )
    return fallbacks


def main(flags):
    torch.manual_seed(flags.seed)
    work = job(flags.seed, flags.variant, flags.values, flags.per_device_batch_size)
    if flags.variant in ("broken", "patched"):
        patched = flags.variant == "patched"
        taken, largest = before.train(
            work, flags.train_steps, flags.values["max_norm"], patched=patched
        )
        print(f"{taken} steps taken; the largest logit was {largest:.1f}")
        print(f"Final validation perplexity: {work.evaluate(work.model)['perplexity'].item():.2f}")
        return
    guard = make_guard(work, flags)
    best = flags.run_dir and hg.BestKeeper(flags.run_dir / "best.pt", "perplexity", "min")
    told = 0
    for step, batch in enumerate(itertools.islice(work.batches(), flags.train_steps), 1):
        guard.step(loss_fn, batch)
        if step % flags.eval_steps == 0 or step == flags.train_steps:
            told = validate(work, guard, best, told)
    print(guard.close())


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    main(read_flags())
