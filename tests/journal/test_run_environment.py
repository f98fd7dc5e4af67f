"""The environment of a run has versions and hardware, but no host name."""

from __future__ import annotations

import json
import platform
import sys

import pytest
import torch

import halfguard
from halfguard.journal import collect_environment
from tests.support.programs import captured


def test_the_facts() -> None:
    facts = collect_environment()
    assert facts["halfguard"] == halfguard.__version__
    assert facts["python"] == platform.python_version()
    assert facts["torch"] == torch.__version__
    assert facts["device"] == "cpu"
    assert facts["platform"]
    assert platform.node() not in json.dumps(facts)


def test_a_cuda_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"TITAN RTX {device}")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert collect_environment(torch.device("cuda", 1))["device"] == "TITAN RTX cuda:1 (sm_75)"


def test_it_works_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from halfguard.journal import collect_environment; print(sorted(collect_environment()))"
    )
    result = captured(sys.executable, "-c", program)
    assert result.stdout.strip() == "['device', 'halfguard', 'platform', 'python']"
