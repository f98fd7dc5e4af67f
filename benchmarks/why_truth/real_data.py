"""Small made-up data for training scripts of other projects: images, text, tables, tokenizers, random models.

A maker writes into the folder that the script runs in, or beside it, under the names that the script expects.
Nothing is downloaded.
"""

from __future__ import annotations

import csv
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

WORDS = tuple(f"w{number}" for number in range(200))
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# A metric of the `evaluate` package that needs no download.
_METRIC = """
import datasets
import evaluate


class Share(evaluate.Metric):
    def _info(self):
        number = datasets.Value("int64")
        features = datasets.Features({"predictions": number, "references": number})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        right = sum(p == r for p, r in zip(predictions, references))
        return {"accuracy": right / len(references)}
"""


def _sentence(random: np.random.Generator, length: int) -> str:
    """Return words that differ from their neighbours."""
    picked = random.integers(0, len(WORDS), length)
    return " ".join(WORDS[(2 * word + place % 2) % len(WORDS)] for place, word in enumerate(picked))


def _write_idx(folder: Path, images: np.ndarray, labels: np.ndarray, prefix: str) -> None:
    """Write images and labels as MNIST has them."""
    folder.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">IIII", 2051, *images.shape)
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(head + images.tobytes())
    head = struct.pack(">II", 2049, len(labels))
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def _write_mnist(root: Path, train: int, test: int, *, black: int = 0) -> None:
    """Write rings with a bright centre; every ``black``-th image is empty."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:28, :28]
    for prefix, count in (("train", train), ("t10k", test)):
        labels = random.integers(0, 10, count).astype(np.uint8)
        distance = np.hypot(x - 13.5, y - 13.5)
        pictures = [
            np.where(abs(distance - digit) < 2, 255, 0) + np.where(distance < 1, 255, 0)
            for digit in range(10)
        ]
        images = np.clip(np.stack(pictures), 0, 255).astype(np.uint8)[labels]
        if black:
            images[black - 1 :: black] = 0
        _write_idx(root / "MNIST" / "raw", images, labels, prefix)


def mnist_beside(folder: Path) -> None:
    """Write 2,560 images into ``../data``."""
    _write_mnist(folder.parent / "data", 2560, 256)
    (folder / "results").mkdir(exist_ok=True)


def mnist_for_lightning(folder: Path) -> None:
    """Write as many images as MNIST has, where Lightning's examples look for them."""
    _write_mnist(folder / "data", 60_000, 10_000)
    (folder.parents[1] / "Datasets").symlink_to(folder / "data")


def mnist_with_black_images(folder: Path) -> None:
    """Write as many images as MNIST has; one in 700 is empty."""
    _write_mnist(folder / "data", 60_000, 10_000, black=700)


def characters(folder: Path) -> None:
    """Write a text as token numbers, as nanoGPT's ``prepare.py`` does."""
    place = folder / "data" / "made_up"
    place.mkdir(parents=True)
    random = np.random.default_rng(0)
    pattern = random.integers(0, 64, 97)
    tokens = np.tile(pattern, 60).astype(np.uint16)
    tokens.tofile(place / "train.bin")
    tokens[:970].tofile(place / "val.bin")
    (place / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 64}))


def text_with_a_doubled_word(folder: Path) -> None:
    """Write three files of text; in the first one, a word follows itself once, far from the beginning."""
    place = folder / "data" / "wikitext-2"
    place.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for name, count in (("train", 400), ("valid", 60), ("test", 60)):
        lines = [_sentence(random, 20) for _ in range(count)]
        if name == "train":
            lines[15] = "w7 w7 " + lines[15]
        (place / f"{name}.txt").write_text("\n".join(lines) + "\n", "utf-8")


def _write_tokenizer(folder: Path) -> int:
    """Write a tokenizer of words, and return the number of its entries."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate((*_SPECIAL, *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=64,
        eos_token="[SEP]",
        **dict(zip(names, _SPECIAL, strict=True)),
    )
    fast.save_pretrained(folder)
    return len(vocabulary)


def _write_bert(folder: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=_write_tokenizer(folder),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertForSequenceClassification(config).save_pretrained(folder)


def _write_pairs(path: Path, random: np.random.Generator, count: int, share: float) -> None:
    """Write pairs of sentences with labels; ``share`` of them are 1."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["idx", "sentence1", "sentence2", "label"])
        for number in range(count):
            pair = (_sentence(random, 6), _sentence(random, 8))
            rows.writerow([number, *pair, int(random.random() < share)])


def _write_metric(folder: Path, name: str) -> None:
    place = folder / name
    place.mkdir()
    (place / f"{name}.py").write_text(_METRIC, "utf-8")


def labelled_sentences(folder: Path) -> None:
    """Write tables of sentences, a small BERT, and a metric."""
    _write_bert(folder / "bert")
    random = np.random.default_rng(0)
    for name, count in (("train", 256), ("validation", 32)):
        _write_pairs(folder / f"{name}.csv", random, count, 0.5)
    _write_metric(folder, "accuracy")


def glue_with_a_rare_label(folder: Path) -> None:
    """Write what stands for GLUE's MRPC, with few negative pairs, and for bert-base-cased."""
    _write_bert(folder / "bert-base-cased")
    place = folder / "nyu-mll" / "glue"
    place.mkdir(parents=True)
    random = np.random.default_rng(3)
    files = []
    for name, count in (("train", 320), ("validation", 32), ("test", 32)):
        _write_pairs(place / f"{name}.csv", random, count, 0.85)
        files += [f"  - split: {name}", f"    path: {name}.csv"]
    head = ["---", "configs:", "- config_name: mrpc", "  data_files:", *files, "---"]
    (place / "README.md").write_text("\n".join(head) + "\n", "utf-8")
    _write_metric(folder, "glue")


def _write_causal(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_write_tokenizer(folder),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def plain_text(folder: Path) -> None:
    """Write a text and a small Llama."""
    _write_causal(folder / "llama")
    random = np.random.default_rng(0)
    lines = [_sentence(random, 30) for _ in range(300)]
    (folder / "train.txt").write_text("\n".join(lines) + "\n", "utf-8")


def text_samples(folder: Path) -> None:
    """Write samples of text, as TRL reads them, and a small Llama."""
    _write_causal(folder / "llama")
    random = np.random.default_rng(0)
    place = folder / "samples"
    place.mkdir()
    first = _sentence(random, 12)
    rows = [json.dumps({"text": f"{first} {_sentence(random, 4)}"}) for _ in range(256)]
    (place / "train.jsonl").write_text("\n".join(rows) + "\n", "utf-8")


def pictures_with_blank_ones(folder: Path) -> None:
    """Write small pictures of two classes; a few are of one colour."""
    from PIL import Image

    random = np.random.default_rng(0)
    place = folder / "pets"
    place.mkdir()
    for number in range(120):
        name = ("cat", "dog")[number % 2]
        pixels = random.integers(0, 256, (40, 40, 3)).astype(np.uint8)
        if number % 40 == 33:
            pixels[:] = 128
        Image.fromarray(pixels).save(place / f"{name}_{number}.jpg", quality=95)


MAKERS: dict[str, Callable[[Path], None]] = {
    maker.__name__: maker
    for maker in (
        mnist_beside,
        mnist_for_lightning,
        mnist_with_black_images,
        characters,
        text_with_a_doubled_word,
        labelled_sentences,
        glue_with_a_rare_label,
        plain_text,
        text_samples,
        pictures_with_blank_ones,
    )
}
