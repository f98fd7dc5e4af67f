"""The ENTRY of the example: ``workload.py:job``, and one function for each variant."""

from functools import partial

import torch
from model import AudioLanguageModel
from peft import LoraConfig, get_peft_model
from prepare import load
from transformers.utils import logging

import halfguard as hg

logging.disable_progress_bar()
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]


def make_model(base, variant="cured", dtype=torch.float16, rank=8, alpha=16, dropout=0.0):
    """Return the base model with adapters, and a projector that is trained whole.

    peft makes adapters FP32 whatever the base is, but not ``modules_to_save``: the projector keeps the dtype
    of the base. The variant ``broken`` leaves it so.
    """
    model = AudioLanguageModel.from_pretrained(base, dtype=dtype, half_features=variant == "loud")
    lora = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=TARGETS,
        modules_to_save=["projector"],
    )
    model = get_peft_model(model, lora)
    if variant != "broken":
        hg.upcast_trainable(model)
    return (
        model.train()
    )  # from_pretrained returns a model in evaluation mode, without checkpointing


def trainable(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def loss_fn(model, batch):
    return model(**batch)["loss"]


def make_batches(rows, seed, size=16):
    noise = torch.Generator().manual_seed(seed)
    while True:
        for chosen in torch.randperm(len(rows["labels"]), generator=noise).split(size):
            yield {key: value[chosen] for key, value in rows.items()}


@torch.no_grad()
def evaluate(model, rows):
    """Return the loss and the share of right words, over commands that were not trained on."""
    training = model.training
    heard = model.eval()(**rows)
    model.train(training)
    right = heard["logits"].argmax(-1) == rows["labels"][:, 1:]
    return {"nll": heard["loss"], "words": right[:, :-1].float().mean()}


def job(seed, variant="cured", dtype=torch.float32, learning_rate=1e-4):
    """Return the job of a study. Its base has the values of the FP16 checkpoint, stored in FP32."""
    rows, base = load()
    torch.manual_seed(seed)
    model = make_model(base, variant, dtype)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return hg.Workload(
        model,
        loss_fn,
        lambda: make_batches(rows["train"], seed),
        torch.optim.AdamW(trainable(model), lr=learning_rate),
        lambda model: evaluate(model, rows["test"]),
        clip_norm=1.0,
    )


half_base = partial(job, dtype=torch.float16)
broken = partial(job, variant="broken", dtype=torch.float16)
loud = partial(job, variant="loud")
