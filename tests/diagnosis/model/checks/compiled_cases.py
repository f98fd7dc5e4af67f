"""Examine compiled models and print the findings as JSON; the compiler changes its process for good."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import Tensor, nn

import halfguard as hg
from tests.diagnosis.model.checks.helper import batch, loss, net


class Rounded(nn.Module):
    """Adds and subtracts 2048, which rounds to an integer in half; fused, nothing is rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor) -> Any:
        h = self.inner(x).half()
        return (h + 2048.0) - 2048.0


class Overflowing(Rounded):
    def forward(self, x: Tensor) -> Any:
        h = self.inner(x).half()
        return h * 60000.0 * 60000.0 / 60000.0 / 60000.0


def examine(model: Any) -> dict[str, dict[str, str]]:
    torch.compiler.reset()
    with torch.autocast("cpu", torch.float16):
        diagnosis = hg.doctor(model, loss=loss, batch=batch())
    return {
        found.code: {"message": found.message, "cure": found.cure} for found in diagnosis.findings
    }


def main() -> None:
    in_place = Rounded()
    in_place.compile()
    found = {
        "rounded": examine(torch.compile(Rounded())),
        "in place": examine(in_place),
        "overflowing": examine(torch.compile(Overflowing())),
        "healthy": examine(torch.compile(net(batchnorm=True))),
        # Compiled code draws other random numbers.
        "dropout": examine(torch.compile(nn.Sequential(net(), nn.Dropout(0.5)))),
    }
    exec(found["rounded"]["HD118"]["cure"], {"torch": torch})
    found["cured"] = examine(torch.compile(Rounded()))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
