"""Evaluate a checkpoint that train.py wrote in FP16: ``python evaluate.py runs/audio_lora/fp16``."""

import sys

import torch
from model import AudioLanguageModel
from prepare import load

from workload import evaluate


def main(folder, dtype="float16"):
    model = AudioLanguageModel.from_pretrained(folder, dtype=getattr(torch, dtype))
    found = evaluate(model, load()[0]["test"])
    print(f"{dtype}: " + ", ".join(f"{name} {value:.4f}" for name, value in found.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])
