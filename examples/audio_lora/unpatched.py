"""The training script before it was patched. It raises. README.md shows what lint changes in it."""

import torch
from half_on_cpu import HalfOnCpu
from model import AudioLanguageModel
from peft import LoraConfig, get_peft_model
from prepare import load
from transformers import Trainer, TrainingArguments


class SpeechTrainer(HalfOnCpu, Trainer):
    pass


rows, base = load()
train = rows["train"]
model = AudioLanguageModel.from_pretrained(base, dtype=torch.float16)
lora = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], modules_to_save=["projector"])
model = get_peft_model(model, lora)
settings = {
    "output_dir": "runs/unpatched",
    "max_steps": 20,
    "per_device_train_batch_size": 16,
    "gradient_checkpointing": True,
    "fp16": True,
    "logging_steps": 5,
    "logging_nan_inf_filter": False,
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
    "remove_unused_columns": False,
    "dataloader_pin_memory": False,
}
data = [dict(zip(train, row, strict=True)) for row in zip(*train.values(), strict=True)]
SpeechTrainer(model, TrainingArguments(**settings), train_dataset=data).train()
