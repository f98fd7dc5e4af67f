"""Train with one configuration: ``python train.py config.yaml [key=value ...]``."""

import itertools
import sys
from pathlib import Path

import torch
import yaml

import halfguard as hg
from workload import job, loss_fn


def read_config(path, *changes):
    config = yaml.safe_load(Path(path).read_text())
    for change in changes:
        key, _, value = change.partition("=")
        if key not in config:
            raise SystemExit(f"{key} is not a key of {path}: {', '.join(config)}")
        config[key] = yaml.safe_load(value)
    return config


def main(config):
    torch.manual_seed(config["seed"])
    sizes = {key: config[key] for key in ("variant", "width", "layers", "learning_rate")}
    work = job(config["seed"], **sizes)
    precision = "fp16-mixed" if config["use_mixed_precision"] else "fp32"
    guard = hg.Guard(
        work.model,
        work.optimizer,
        config["guard"] | {"precision": precision},
        run_dir=config["run_dir"],
        entry=f"workload.py:{'job' if config['variant'] == 'cured' else config['variant']}",
    )
    for batch in itertools.islice(work.batches(), config["steps"]):
        guard.step(loss_fn, batch)
    guard.close()
    print(guard.counts)
    print(f"validation: {work.evaluate(work.model)['nll'].item():.4f} nats a digit")


if __name__ == "__main__":
    main(read_config(*sys.argv[1:]))
