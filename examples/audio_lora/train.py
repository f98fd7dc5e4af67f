"""Train with a named configuration: ``python train.py --config paper_r8 [key=value ...]``."""

import json
import sys
import tempfile
from pathlib import Path

import torch
import yaml
from half_on_cpu import HalfOnCpu
from prepare import load
from transformers import Trainer, TrainingArguments

import halfguard as hg
from halfguard.integrations.transformers import GuardedTrainer
from workload import evaluate, make_model

ENTRIES = {"broken": "broken", "loud": "loud", "cured": "half_base"}


class StockTrainer(HalfOnCpu, Trainer):
    pass


class SpeechTrainer(HalfOnCpu, GuardedTrainer):
    pass


def read_config(flag, name, *changes):
    configs = yaml.safe_load(Path(__file__).with_name("configs.yaml").read_text())
    if flag != "--config" or name not in configs:
        raise SystemExit(f"--config NAME, one of {', '.join(configs)}")
    config = configs[name]
    for change in changes:
        key, _, value = change.partition("=")
        if key not in config:
            raise SystemExit(f"{key} is not a key of {name}: {', '.join(config)}")
        config[key] = yaml.safe_load(value)
    return config


def training_arguments(config, folder):
    return TrainingArguments(
        output_dir=str(folder or tempfile.gettempdir()),
        max_steps=config["steps"],
        per_device_train_batch_size=config["batch_size"],
        gradient_accumulation_steps=config["gradient_accumulation"],
        learning_rate=config["learning_rate"],
        optim=config["optimizer"],
        max_grad_norm=config["max_grad_norm"],
        gradient_checkpointing=config["gradient_checkpointing"],
        gradient_checkpointing_kwargs={"use_reentrant": False},
        fp16=config["precision"] == "fp16",
        bf16=config["precision"] == "bf16",
        seed=config["seed"],
        logging_steps=20,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )


def make_trainer(config, model, rows, folder):
    data = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
    args = training_arguments(config, folder)
    if config["guard"] is None:
        return StockTrainer(model, args, train_dataset=data)
    return SpeechTrainer(
        model,
        args,
        train_dataset=data,
        guard=config["guard"],
        run_dir=folder,
        entry=f"workload.py:{ENTRIES[config['variant']]}",
    )


def main(config):
    rows, base = load()
    folder = None if config["run_dir"] is None else Path(config["run_dir"])
    torch.manual_seed(config["seed"])
    dtype = torch.float32 if config["precision"] == "fp32" else torch.float16
    sizes = {key: config[key] for key in ("rank", "alpha", "dropout")}
    model = make_model(base, config["variant"], dtype, **sizes)
    trainer = make_trainer(config, model, rows["train"], folder)
    trainer.train()
    if config["guard"] is not None:
        print(trainer.guard.counts)
    found = {name: value.item() for name, value in evaluate(model, rows["test"]).items()}
    print(", ".join(f"{name} {value:.4f}" for name, value in found.items()))
    if config["metrics"] is not None:
        Path(config["metrics"]).write_text(json.dumps(found))
    if folder is None:
        return
    merged = model.merge_and_unload()
    merged.save_pretrained(folder / "fp16", state_dict=hg.half_state_dict(merged))


if __name__ == "__main__":
    main(read_config(*sys.argv[1:]))
