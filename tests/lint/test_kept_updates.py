"""Casts back to float32 are looked for once in a file, however many optimizers it has."""

from __future__ import annotations

import pytest

from halfguard.lint import half_weights
from halfguard.lint.cast_back import CastBack
from halfguard.lint.python_file import PythonFile
from tests.lint.helper import found

TRAIN = """
def train{0}(model, loader, loss_fn):
    model = model.half()
    for name, p in model.named_parameters():
        if "norm" in name:
            p.data = p.data.float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-4)
    for x, y in loader:
        loss_fn(model(x), y).backward()
        optimizer.step()
"""


def test_a_file_with_many_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[PythonFile] = []

    def count(file: PythonFile) -> CastBack:
        searched.append(file)
        return CastBack(file)

    monkeypatch.setattr(half_weights, "CastBack", count)
    text = "import torch\n" + "".join(TRAIN.format(number) for number in range(20))
    assert [code for _, code in found(text, "train.py")].count("HG402") == 20
    assert len(searched) == 1
