"""Small made-up data for the second set of other projects' training scripts (see ``real_data``)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.why_truth.real_data import (
    _sentence,
    _write_bert,
    _write_causal,
    _write_mnist,
)


def nothing(folder: Path) -> None:
    """Write nothing: the script has its data beside it, or makes it."""


def _write_picture(path: Path, pixels: np.ndarray) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def pictures_and_masks(folder: Path) -> None:
    """Write pictures with a bright disc, and masks of the discs."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:112, :112]
    for number in range(20):
        centre = random.integers(30, 80, 2)
        disc = np.hypot(x - centre[0], y - centre[1]) < 25
        noise = random.integers(0, 60, (112, 112, 3)) + 180 * disc[..., None]
        _write_picture(folder / "data" / "imgs" / f"{number}.png", noise.astype(np.uint8))
        _write_picture(folder / "data" / "masks" / f"{number}.png", disc.astype(np.uint8))


def pictures_and_a_small_unet(folder: Path) -> None:
    """Write noise as pictures, and the configuration of a small UNet."""
    random = np.random.default_rng(0)
    for number in range(160):
        pixels = random.integers(0, 256, (16, 16, 3)).astype(np.uint8)
        _write_picture(folder / "pictures" / f"{number}.png", pixels)
    config = {
        "_class_name": "UNet2DModel",
        "sample_size": 16,
        "block_out_channels": [8, 16],
        "down_block_types": ["DownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "UpBlock2D"],
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "attention_head_dim": 4,
    }
    (folder / "unet").mkdir()
    (folder / "unet" / "config.json").write_text(json.dumps(config), "utf-8")


def instructions(folder: Path) -> None:
    """Write instructions with answers, and a small Llama."""
    _write_causal(folder / "llama")
    random = np.random.default_rng(0)
    (folder / "samples").mkdir()
    rows = [
        {"instruction": _sentence(random, 6), "output": _sentence(random, 6)} for _ in range(200)
    ]
    text = "\n".join(json.dumps(row) for row in rows)
    (folder / "samples" / "train.jsonl").write_text(f"{text}\n", "utf-8")


def waves(folder: Path) -> None:
    """Write sine waves, as ``generate_sine_wave.py`` does, but fewer and shorter ones."""
    random = np.random.default_rng(0)
    starts = random.integers(-80, 80, (20, 1))
    table = np.sin((np.arange(60)[None] + starts + 0.004) / 20.0)  # never 0
    torch.save(table, folder / "traindata.pt")


def mnist_for_fabric(folder: Path) -> None:
    """Write 960 images, three of them empty, where Fabric's example looks for them."""
    _write_mnist(folder.parents[2] / "Datasets", 960, 64, black=300)


def text_for_bert(folder: Path) -> None:
    """Write a text and a small BERT."""
    _write_bert(folder / "bert")
    random = np.random.default_rng(0)
    lines = [_sentence(random, 30) for _ in range(300)]
    (folder / "train.txt").write_text("\n".join(lines) + "\n", "utf-8")


SECOND_MAKERS: dict[str, Callable[[Path], None]] = {
    maker.__name__: maker
    for maker in (
        nothing,
        pictures_and_masks,
        pictures_and_a_small_unet,
        instructions,
        waves,
        mnist_for_fabric,
        text_for_bert,
    )
}
