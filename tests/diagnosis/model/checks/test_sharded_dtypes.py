"""HD121 on models that FSDP2 shards: planted differences of six kinds, and six healthy set-ups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import AdamW

import halfguard as hg
from halfguard.precision.declared_dtypes import rollout_of

HALF, WIDE = torch.float16, torch.float32


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    url = (tmp_path_factory.mktemp("store") / "file").as_uri()
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=url)
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)))  # type: ignore[no-any-return]


def sharded(
    policy: MixedPrecisionPolicy,
    *,
    prepare: Callable[[Net], Any] = lambda _: None,
    alone: str | None = None,
    half_state: bool = False,
    asked: str | None = "fp16-mixed",
    rollout: Any = None,
) -> list[str]:
    """Return the messages of HD121 for a model that was prepared and sharded in this way."""
    model = Net()
    prepare(model)
    if alone is not None:
        fully_shard(model.get_submodule(alone), mp_policy=MixedPrecisionPolicy())
    fully_shard(model, mp_policy=policy)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    if half_state:
        for parameter in model.parameters():
            moments = torch.zeros_like(parameter, dtype=torch.bfloat16)
            optimizer.state[parameter] = {"exp_avg": moments}
    found = hg.doctor(
        model, optimizer, precision=asked, scaler=torch.amp.GradScaler("cpu"), rollout=rollout
    )
    return [one.message for one in found.findings if one.code == "HD121"]


def keep_norm(model: Any) -> None:
    model._keep_in_fp32_modules = ["norm"]


def engine(dtype: torch.dtype) -> Any:
    """Return what vLLM's ``LLM`` shows of its dtype."""
    config = SimpleNamespace(model_config=SimpleNamespace(dtype=dtype))
    return SimpleNamespace(llm_engine=config)


PLANTED: dict[str, tuple[dict[str, Any], str]] = {
    "flattened island of ours": (
        {
            "policy": MixedPrecisionPolicy(HALF, WIDE),
            "prepare": lambda model: hg.fp32_island(model.norm),
        },
        "FSDP2 gathers FP32 islands in 16-bit precision: norm.",
    ),
    "flattened island of transformers": (
        {"policy": MixedPrecisionPolicy(HALF, WIDE), "prepare": keep_norm},
        "FSDP2 gathers FP32 islands in 16-bit precision: norm.",
    ),
    "16-bit reduce": (
        {"policy": MixedPrecisionPolicy(HALF)},
        "Gradients of ranks and micro-batches are added in float16: the model itself.",
    ),
    "16-bit accumulation": (
        {"policy": MixedPrecisionPolicy(HALF, WIDE), "prepare": lambda model: model.bfloat16()},
        "The shards of the model itself are kept in bfloat16.",
    ),
    "ignored key": (
        {"policy": MixedPrecisionPolicy(torch.bfloat16, WIDE)},
        "fp16-mixed was requested, and FSDP2 computes in bfloat16.",
    ),
    "half optimizer state": (
        {"policy": MixedPrecisionPolicy(HALF, WIDE), "half_state": True},
        "The optimizer's state is kept in bfloat16.",
    ),
    "another dtype in the rollout copy": (
        {"policy": MixedPrecisionPolicy(HALF, WIDE), "rollout": Net().bfloat16()},
        "The rollout copy is bfloat16, but the trained model computes in float16.",
    ),
    "another dtype in vLLM": (
        {"policy": MixedPrecisionPolicy(HALF, WIDE), "rollout": engine(torch.bfloat16)},
        "The rollout copy is bfloat16, but the trained model computes in float16.",
    ),
}
HEALTHY: list[dict[str, Any]] = [
    {"policy": MixedPrecisionPolicy(HALF, WIDE), "rollout": engine(HALF)},
    {"policy": MixedPrecisionPolicy(HALF, WIDE, WIDE), "rollout": Net().half()},
    {"policy": MixedPrecisionPolicy(torch.bfloat16, WIDE), "asked": "bf16-mixed"},
    {"policy": MixedPrecisionPolicy(), "asked": "fp32"},
    {"policy": MixedPrecisionPolicy()},  # autocast lowers it
    {"policy": MixedPrecisionPolicy(HALF, WIDE), "prepare": keep_norm, "alone": "norm"},
]


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_is_found(name: str) -> None:
    how, message = PLANTED[name]
    assert sharded(**how) == [message]


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("how", HEALTHY, ids=range(len(HEALTHY)))
def test_a_healthy_setup_has_no_finding(how: dict[str, Any]) -> None:
    assert sharded(**how) == []


def test_the_engine_of_a_trainer_is_found() -> None:
    """TRL keeps a colocated engine in ``vllm_generation``, and kept it in the trainer before."""
    for trainer in (
        SimpleNamespace(llm="engine"),
        SimpleNamespace(vllm_generation=SimpleNamespace(llm="engine")),
    ):
        assert rollout_of(trainer) == "engine"
    assert rollout_of(None) is None
