"""Accelerators that the guard refuses, and the precision of those that it does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from accelerate.utils import DistributedType
from torch import nn

from halfguard.errors import UsageError
from halfguard.integrations.accelerator_precision import precision_of, raise_if_unsupported

PLAIN = nn.Linear(2, 2)


def accelerator(
    precision: str, where: str = "NO", *, lowered: bool = True, fsdp2: bool = False
) -> Any:
    kind = DistributedType(where)
    return SimpleNamespace(
        mixed_precision=precision, distributed_type=kind, native_amp=lowered, is_fsdp2=fsdp2
    )


@pytest.mark.parametrize("where", ["DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA"])
def test_engines_that_step_by_themselves_are_refused(where: str) -> None:
    with pytest.raises(UsageError, match=f"does not run with mixed_precision='fp16' under {where}"):
        raise_if_unsupported(accelerator("fp16", where))


def test_fsdp2_is_guarded_and_fsdp1_is_named() -> None:
    raise_if_unsupported(accelerator("fp16", "FSDP", fsdp2=True))
    with pytest.raises(UsageError, match=r"(?s)under FSDP version 1.*fsdp_version=2"):
        raise_if_unsupported(accelerator("fp16", "FSDP"))


def test_fp8_is_refused() -> None:
    with pytest.raises(UsageError, match="mixed_precision='fp8'"):
        raise_if_unsupported(accelerator("fp8"))


@pytest.mark.parametrize("where", ["NO", "MULTI_CPU", "MULTI_GPU"])
def test_one_process_and_ddp_are_guarded(where: str) -> None:
    raise_if_unsupported(accelerator("bf16", where))


def test_a_precision_that_does_not_run_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert precision_of(accelerator("fp16"), PLAIN) == "fp16-mixed"
    assert precision_of(accelerator("no", lowered=False), PLAIN) == "fp32"
    assert not caplog.records
    assert precision_of(accelerator("fp16", lowered=False), PLAIN) == "fp32"
    assert "does not run fp16 on this device" in caplog.text
