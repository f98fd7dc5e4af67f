"""`precision: auto` chooses what the doctor would, by the device that torch reports."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import halfguard as hg
from halfguard.errors import ConfigError
from halfguard.hardware.auto import choose_precision
from halfguard.hardware.choice import choose
from halfguard.hardware.lookup import find_card, look_up_processor
from halfguard.hardware.reading import read_processor

GIGABYTE = 1024**3


def torch_with(name: str, capability: str, memory: int = 16) -> Any:
    major, minor = map(int, capability.split("."))
    found = SimpleNamespace(name=name, major=major, minor=minor, total_memory=memory * GIGABYTE)
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        get_device_properties=lambda _index: found,
    )
    return SimpleNamespace(version=SimpleNamespace(hip=None, cuda="12.8"), cuda=cuda)


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "8.0", "bf16-mixed"),
        ("NVIDIA H100 80GB HBM3", "9.0", "bf16-mixed"),
        ("Tesla T4", "7.5", "fp16-mixed"),  # is_bf16_supported() is True there: it counts emulation
        ("NVIDIA TITAN RTX", "7.5", "fp16-mixed"),
        ("NVIDIA GeForce GTX 1660 Ti", "7.5", "fp32"),  # its FP16 convolutions are faulty
        ("NVIDIA GeForce GTX 1080 Ti", "6.1", "fp32"),  # its FP16 is 64 times slower
    ],
)
def test_the_choice_is_that_of_the_table(name: str, capability: str, expected: str) -> None:
    assert choose_precision(torch_with(name, capability)) == expected
    assert choose(find_card(name)).precision == expected


@pytest.mark.usefixtures("seed")
@pytest.mark.skipif(torch.accelerator.is_available(), reason="about a machine without accelerator")
def test_a_configuration_holds_the_name_that_was_chosen(caplog: pytest.LogCaptureFixture) -> None:
    here = choose(look_up_processor(read_processor())).precision
    with caplog.at_level(logging.INFO, "halfguard"):
        assert hg.GuardConfig.load({"precision": "auto"}).precision == here
    assert f"precision: auto is {here} on" in caplog.text
    model = nn.Linear(2, 2)
    guard = hg.Guard(model, torch.optim.SGD(model.parameters()), {"precision": "auto"})
    assert guard.config.precision == here
    assert guard.config.model_dump()["precision"] == here


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="precision"):
        hg.GuardConfig.load({"precision": "automatic"})
