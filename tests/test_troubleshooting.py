"""The page of symptoms quotes torch's own words, and names rules and commands that exist."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from halfguard.catalogue import all_entries
from halfguard.cli.app import COMMANDS
from tests.support.cases import each
from tests.support.docs import ROOT

pytestmark = pytest.mark.usefixtures("seed")
PAGE = (ROOT / "docs/how-to/troubleshooting.md").read_text()


def after_backward() -> tuple[torch.amp.GradScaler, torch.optim.Optimizer]:
    weight = nn.Parameter(torch.ones(2))
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD([weight])
    scaler.scale(weight.sum()).backward()
    return scaler, optimizer


def unscale_twice() -> None:
    scaler, optimizer = after_backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


def step_twice() -> None:
    scaler, optimizer = after_backward()
    scaler.step(optimizer)
    scaler.step(optimizer)


def step_without_gradients() -> None:
    scaler, _ = after_backward()
    scaler.step(torch.optim.SGD([nn.Parameter(torch.ones(1))]))


def update_without_step() -> None:
    scaler, _ = after_backward()
    scaler.update()


def unscale_half() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.float16))
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(torch.optim.SGD([weight]))


def mask_half() -> None:
    torch.zeros(2, dtype=torch.float16).masked_fill(torch.ones(2, dtype=torch.bool), -1e9)


def half_layer_without_autocast() -> None:
    nn.Linear(2, 2).half()(torch.ones(2, 2))


def half_product() -> None:
    torch.ones(2, 2, dtype=torch.float16) @ torch.ones(2, 2)


RAISED: list[tuple[Callable[[], None], str]] = [
    (
        unscale_twice,
        "unscale_() has already been called on this optimizer since the last update().",
    ),
    (step_twice, "step() has already been called since the last update()."),
    (step_without_gradients, "No inf checks were recorded for this optimizer."),
    (update_without_step, "No inf checks were recorded prior to update."),
    (unscale_half, "Attempting to unscale FP16 gradients."),
    (mask_half, "value cannot be converted to type c10::Half without overflow"),
    (half_layer_without_autocast, "mat1 and mat2 must have the same dtype"),
    (half_product, "expected m1 and m2 to have the same dtype"),
]


@each(("fail", "text"), RAISED)
def test_torch_says_what_the_page_quotes(fail: Callable[[], None], text: str) -> None:
    assert f"`{text}`" in PAGE
    said = re.escape(text).replace(
        "c10::Half", "(c10|at)::Half"
    )  # as newer and older torch call it
    with pytest.raises((RuntimeError, ValueError, AssertionError), match=said):
        fail()


def test_rules_exist() -> None:
    named = set(re.findall(r"HG\d{3}", PAGE))
    assert named
    assert named <= {one.code for one in all_entries()}


def test_commands_exist() -> None:
    named = set(re.findall(r"`halfguard (\w+)", PAGE))
    assert named
    assert named <= set(COMMANDS)
