"""Setups to examine, and cures that are applied by running the very lines that a finding names."""

from __future__ import annotations

import textwrap
from typing import Any

import torch
from torch import Tensor, nn

import halfguard
from halfguard.records.diagnosis import Diagnosis
from halfguard.records.finding import Finding
from tests.support.devices import device_type


def net(*, batchnorm: bool = False) -> Any:
    """A small Sequential with drawn weights, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        middle: nn.Module = nn.BatchNorm1d(8) if batchnorm else nn.ReLU()
        return nn.Sequential(nn.Linear(4, 8), middle, nn.Linear(8, 1))


def batch() -> Tensor:
    return torch.linspace(-1, 1, 16).reshape(4, 4)


def loss(model: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = model(x).float()
    return (output - 1).square().mean()


def codes(diagnosis: Diagnosis) -> list[str]:
    return [found.code for found in diagnosis.findings]


def found(diagnosis: Diagnosis, code: str) -> Finding:
    (only,) = [finding for finding in diagnosis.findings if finding.code == code]
    assert only.why
    assert only.cure
    return only


def cured(finding: Finding, body: str = "pass", **names: Any) -> dict[str, Any]:
    """Run the cure as if pasted, with ``body`` inside it if it opens a block; return the names after it."""
    opens = finding.cure.splitlines()[-1].split("#")[0].rstrip().endswith(":")
    source = (
        f"{finding.cure}\n{textwrap.indent(body, '    ')}" if opens else f"{finding.cure}\n{body}"
    )
    space = {"torch": torch, "halfguard": halfguard, **names}
    exec(source, space)
    return space


def half_step(model: nn.Module, optimizer: Any, scaler: Any, x: Tensor) -> None:
    """One step of a careful loop under CPU autocast in float16."""
    optimizer.zero_grad()
    with torch.autocast(device_type(), torch.float16):
        value = loss(model, x)
    scaler.scale(value).backward()
    scaler.step(optimizer)
    scaler.update()
