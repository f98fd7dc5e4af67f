"""Accelerators that the guard refuses, and the precision of those that it does not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate.utils import DistributedType
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from halfguard.errors import UsageError
from halfguard.integrations.declared_precision import (
    check_declared,
    precision_of,
    raise_if_unsupported,
)

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
    with pytest.raises(UsageError, match=f"does not support mixed_precision='fp16' under {where}"):
        raise_if_unsupported(accelerator("fp16", where))


def test_fsdp2_is_guarded_and_fsdp1_is_named() -> None:
    raise_if_unsupported(accelerator("fp16", "FSDP", fsdp2=True))
    with pytest.raises(UsageError, match=r"(?s)under FSDP version 1.*fsdp_version=2"):
        raise_if_unsupported(accelerator("fp16", "FSDP"))
    older = accelerator("fp16", "FSDP")
    del older.is_fsdp2  # Accelerate 1.5
    with pytest.raises(UsageError, match="under FSDP version 1"):
        raise_if_unsupported(older)


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


def test_strict_refuses_a_precision_that_does_not_run() -> None:
    with pytest.raises(UsageError, match=r"strict: true.*does not run fp16 on this device"):
        precision_of(accelerator("fp16", lowered=False), PLAIN, strict=True)


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    url = (tmp_path / "store").as_uri()
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=url)
    yield
    dist.destroy_process_group()


def sharded(param: torch.dtype | None = None, reduce: torch.dtype | None = None) -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param, reduce))
    return model


@pytest.mark.usefixtures("seed", "one_rank")
def test_a_run_as_declared_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    hub = accelerator("fp16", "FSDP", fsdp2=True)
    model = sharded(torch.float16, torch.float32)
    with caplog.at_level(logging.INFO, "halfguard"):
        assert precision_of(hub, model, strict=True) == "fp16-mixed"
        check_declared(sharded(), [], "fp16-mixed", strict=True, autocasts=True)
    assert caplog.messages == [
        "fp16-mixed was requested; FSDP2 computes in float16, adds in float32 and stores float32.",
        "fp16-mixed was requested; FSDP2 computes in float32, adds in float32 and stores float32.",
    ]


@pytest.mark.usefixtures("seed", "one_rank")
def test_what_was_not_declared_is_told_in_one_line_and_refused_if_strict(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub = accelerator("fp16", "FSDP", fsdp2=True)
    model = sharded(torch.bfloat16)
    assert precision_of(hub, model) == "bf16-mixed"
    [told] = caplog.messages
    assert "fp16-mixed was requested, but FSDP2 computes in bfloat16." in told
    assert "are added in bfloat16: the model itself." in told
    assert "reduce_in_fp32(accelerator)" in told
    with pytest.raises(UsageError, match=r"(?s)strict: true.*computes in bfloat16.*Policy"):
        precision_of(hub, model, strict=True)
    with pytest.raises(UsageError, match="computes in float32"):  # Accelerate opens no autocast
        precision_of(hub, sharded(), strict=True)
