"""The ENTRY of the example: ``workload.py:job``, and one function for each variant."""

from contextlib import nullcontext
from functools import partial

import torch
from model import DBNet
from pages import pages
from polygons import h_mean

import halfguard as hg

TRAIN, TEST, BATCH, STEPS, RATE = 160, 100, 8, 100, 1e-2
CLIP_NORM = 5.0  # the gradient_clip_val of every trainer in conf/trainer


def cuda_rules():
    """Give a CPU's autocast the rules of a GPU's, where autocast is on."""
    if not torch.is_autocast_enabled("cpu"):
        return nullcontext()
    return hg.emulate_autocast("cuda", dtype=torch.get_autocast_dtype("cpu"))


def loss_fn(model, batch):
    with cuda_rules():
        return model.loss(batch)


def make_batches(seed, count=TRAIN):
    images, maps, _ = pages(count, 1000 + seed)
    return list(zip(images.split(BATCH), maps.split(BATCH), strict=True))


@torch.no_grad()
def evaluate(model, count=TEST):
    """Return H-mean, precision and recall on pages that were not trained on."""
    images, _, outlines = pages(count, 1)
    logits, _ = model(images)
    return h_mean(torch.sigmoid(logits)[:, 0].float().numpy(), outlines)


def job(seed, variant="cured", steps=STEPS, test=TEST):
    model = DBNet(variant=variant)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, steps)
    optimizer.register_step_post_hook(lambda *_: schedule.step())  # not for steps that are skipped
    batches = make_batches(seed)
    return hg.Workload(
        model,
        loss_fn,
        batches,
        optimizer,
        lambda model: evaluate(model, test),
        clip_norm=CLIP_NORM,
    )


cured = job
broken = partial(job, variant="broken")
island = partial(job, variant="island")
# For studies: longer, and on more pages, so that single words decide less.
study_broken = partial(job, variant="broken", steps=150, test=300)
study_cured = partial(job, steps=150, test=300)
