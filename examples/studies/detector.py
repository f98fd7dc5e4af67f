"""A small text detector like DBNet: a probability map of the words in an image, evaluated by H-mean.

Words are drawn in DejaVu Sans, which comes with matplotlib, on a noisy background with lines. A word counts
as found if the box around a connected part of the map overlaps it with an IoU above one half.
"""

import functools
import random
import string

import matplotlib
import numpy
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage
from torch import nn
from torch.nn import functional

import halfguard as hg

HEIGHT, WIDTH, CHANNELS, BATCH = 32, 64, 16, 16
FONT = f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf"


def draw(rng):
    """Draw one image; return it with the boxes of its words (left, top, right, bottom)."""
    image = Image.new("L", (WIDTH, HEIGHT), rng.randint(0, 60))
    pen, boxes = ImageDraw.Draw(image), []
    for _ in range(2):
        ends = [(rng.randrange(WIDTH), rng.randrange(HEIGHT)) for _ in range(2)]
        pen.line(ends, fill=rng.randint(60, 200))
    for top in (1, 17):
        if boxes and rng.random() < 0.3:
            continue
        word = "".join(rng.choices(string.ascii_letters, k=rng.randint(3, 5)))
        font = ImageFont.truetype(FONT, rng.randint(9, 12))
        box = pen.textbbox((rng.randint(1, 20), top), word, font=font)
        pen.text((box[0], top), word, font=font, fill=rng.randint(150, 255))
        boxes.append((box[0], box[1], min(box[2], WIDTH), min(box[3], HEIGHT)))
    return numpy.asarray(image, dtype=numpy.float32) / 255, boxes


@functools.cache
def pages(count, seed):
    """Return noisy images, the maps to learn, and the boxes."""
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    drawn = [draw(rng) for _ in range(count)]
    images = torch.stack([torch.from_numpy(image) for image, _ in drawn])[:, None]
    images += 0.08 * torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    maps = torch.zeros_like(images)
    for target, (_, boxes) in zip(maps, drawn, strict=True):
        for left, top, right, bottom in boxes:
            target[0, top:bottom, left:right] = 1
    return images, maps, [boxes for _, boxes in drawn]


class Convolution(nn.Module):
    """A 3 x 3 convolution as one matrix product: torch's has no fast FP16 backward pass on a CPU."""

    def __init__(self, channels, reach):
        super().__init__()
        self.reach, self.mix = reach, nn.Linear(9 * channels, channels)
        self.norm = nn.GroupNorm(4, channels)

    def forward(self, x):
        rows, columns, reach = *x.shape[-2:], self.reach
        padded = functional.pad(x, (reach,) * 4)
        corners = [(i * reach, j * reach) for i in range(3) for j in range(3)]
        around = torch.cat([padded[:, :, i : i + rows, j : j + columns] for i, j in corners], 1)
        mixed = self.mix(around.movedim(1, -1)).movedim(-1, 1)
        return x + torch.relu(self.norm(mixed))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, CHANNELS)  # from 2 x 2 pixels
        self.body = nn.Sequential(*(Convolution(CHANNELS, reach) for reach in (1, 2, 4, 1)))
        self.head = nn.Linear(CHANNELS, 4)

    def forward(self, images):
        x = functional.pixel_unshuffle(images, 2).movedim(1, -1)
        x = self.body(self.stem(x).movedim(-1, 1)).movedim(1, -1)
        return functional.pixel_shuffle(self.head(x).movedim(-1, 1), 2)


def loss(model, batch):
    """Return the cross-entropy of the pixels plus the dice loss of the whole map."""
    images, maps = batch
    logits = model(images)
    found = torch.sigmoid(logits)
    overlap = 2 * (found * maps).sum() / (found.sum() + maps.sum() + 1)
    return functional.binary_cross_entropy_with_logits(logits, maps) + 1 - overlap


def h_mean(model):
    images, _, truth = pages(300, 1)
    found = [_boxes(probability[0]) for probability in torch.sigmoid(model(images)).float()]
    hits = sum(_matches(mine, theirs) for mine, theirs in zip(found, truth, strict=True))
    precision = hits / max(1, sum(map(len, found)))
    recall = hits / sum(map(len, truth))
    mean = 2 * precision * recall / max(precision + recall, 1e-9)
    return {"h_mean": mean, "precision": precision, "recall": recall}


def _boxes(probability):
    labels, _ = ndimage.label(probability.numpy() > 0.5)
    boxes = [(x.start, y.start, x.stop, y.stop) for y, x in ndimage.find_objects(labels)]
    return [box for box in boxes if (box[2] - box[0]) * (box[3] - box[1]) > 40]


def _matches(found, truth):
    return sum(max((_iou(box, other) for other in found), default=0) > 0.5 for box in truth)


def _iou(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    return shared / (areas - shared)


def job(seed):
    images, maps, _ = pages(800, 1000 + seed)
    model = Detector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = list(zip(images.split(BATCH), maps.split(BATCH), strict=True))
    return hg.Workload(model, loss, batches, optimizer, h_mean)
