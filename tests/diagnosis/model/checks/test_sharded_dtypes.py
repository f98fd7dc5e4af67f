"""HD121 on models that FSDP2 shards: planted differences of six kinds, and six healthy set-ups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
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
        "The shards of the model itself are stored in bfloat16.",
    ),
    "ignored key": (
        {"policy": MixedPrecisionPolicy(torch.bfloat16, WIDE)},
        "fp16-mixed was requested, but FSDP2 computes in bfloat16.",
    ),
    "half optimizer state": (
        {"policy": MixedPrecisionPolicy(HALF, WIDE), "half_state": True},
        "The optimizer's state is stored in bfloat16.",
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


class Scored(nn.Module):
    """Returns log-probabilities and a loss that are computed in FP32, and logits that are not."""

    def __init__(self, *returned: str) -> None:
        super().__init__()
        self.inner, self.returned = nn.Linear(4, 3), returned

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        logits = self.inner(x)
        scores = logits.float().log_softmax(-1)
        found = {"logits": logits.float(), "logprobs": scores, "loss": -scores.mean()}
        return {name: value for name, value in found.items() if name in self.returned}


def outputs_of(
    policy: MixedPrecisionPolicy, *returned: str, inner: torch.dtype | None = None
) -> list[tuple[str, str]]:
    model = Scored(*returned)
    fully_shard(model.inner, mp_policy=replace(policy, output_dtype=inner))
    fully_shard(model, mp_policy=policy)  # has no parameters of its own, but casts
    optimizer = AdamW(model.parameters(), lr=1e-3)
    found = hg.doctor(
        model,
        optimizer,
        scaler=torch.amp.GradScaler("cpu"),
        loss=lambda model, batch: sum(value.sum() for value in model(batch).values()),
        batch=torch.randn(5, 4),
    )
    assert model(torch.randn(5, 4))[returned[0]].dtype is (policy.output_dtype or WIDE)
    return [(one.severity, one.message) for one in found.findings if one.code == "HD121"]


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize(
    ("dtype", "returned", "told"),
    [
        (HALF, ("logits", "logprobs", "loss"), ("warning", "logprobs, loss")),
        (torch.bfloat16, ("logprobs",), ("warning", "logprobs")),
        (HALF, ("loss",), ("warning", "loss")),
        (torch.bfloat16, ("logits", "loss"), ("note", "loss")),
    ],
)
def test_outputs_that_fsdp_rounds_are_named(
    dtype: torch.dtype, returned: tuple[str, ...], told: tuple[str, str]
) -> None:
    """Accelerate's own policy casts outputs."""
    message = f"FSDP2 rounds what the model returns to {str(dtype)[6:]}: {told[1]}."
    assert outputs_of(MixedPrecisionPolicy(dtype, WIDE, dtype), *returned) == [(told[0], message)]


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
def test_outputs_that_lose_no_digit_are_no_finding(dtype: torch.dtype) -> None:
    """A head in 16 bits has no more digits; and what an inner module returns stays in the model."""
    assert outputs_of(MixedPrecisionPolicy(dtype, WIDE, dtype), "logits") == []
    assert outputs_of(MixedPrecisionPolicy(dtype, WIDE, WIDE), "logprobs", "loss") == []
    assert outputs_of(MixedPrecisionPolicy(dtype, WIDE), "logprobs", inner=dtype) == []


@pytest.mark.usefixtures("seed")
def test_a_loss_in_half_limits_the_scale() -> None:
    """This is what the finding says."""

    def is_finite(output: torch.dtype | None, scale: float) -> bool:
        model = Scored("loss")
        fully_shard(model, mp_policy=MixedPrecisionPolicy(HALF, WIDE, output))
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(model(torch.randn(5, 4))["loss"]).backward()
        return all(bool(p.grad.to_local().isfinite().all()) for p in model.parameters())  # type: ignore[union-attr]

    assert is_finite(HALF, 32768.0)
    assert is_finite(None, 65536.0)
    assert not is_finite(HALF, 65536.0)


def test_the_engine_of_a_trainer_is_found() -> None:
    """TRL keeps a colocated engine in ``vllm_generation``, and kept it in the trainer before."""
    for trainer in (
        SimpleNamespace(llm="engine"),
        SimpleNamespace(vllm_generation=SimpleNamespace(llm="engine")),
    ):
        assert rollout_of(trainer) == "engine"
    assert rollout_of(None) is None
