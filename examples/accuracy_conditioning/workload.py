"""The ENTRY of the example: ``workload.py:job``, and one function for each variant."""

from functools import partial

import torch
from data import make_batches, make_rows
from model import Student
from torch import nn

import halfguard as hg


def loss_fn(model, batch):
    questions, categories, accuracy, answers = batch
    logits = model(questions, categories, accuracy, answers)
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), answers.flatten())


@torch.no_grad()
def evaluate(model, rows):
    """Return the loss on rows that were not trained on: nats for each digit."""
    return {"nll": loss_fn(model, rows)}


def job(seed, variant="cured", width=64, layers=2, learning_rate=2e-3):
    model = Student(width=width, layers=layers, variant=variant)
    return hg.Workload(
        model,
        loss_fn,
        lambda: make_batches(seed),
        torch.optim.AdamW(model.parameters(), lr=learning_rate),
        lambda model: evaluate(model, make_rows(1024, seed=1)),
        clip_norm=1.0,
    )


broken = partial(job, variant="broken")
patched = partial(job, variant="patched")
unbounded = partial(job, variant="unbounded")
