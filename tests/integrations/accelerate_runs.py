"""Small loops with Accelerate, with its own scaler, guarded, and in FP32; FP16 really runs on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR

from halfguard.integrations.accelerate import AcceleratorGuard, attach
from halfguard.numerics.tensor_rows import local_tensor

INIT_SCALE = 1024.0  # small enough that healthy runs see no overflow
RETRY = {"skip": {"on_nonfinite": "retry_fp32"}}
SKIP = {"skip": {"on_nonfinite": "skip"}}
Batch = dict[str, Tensor]


class Classifier(nn.Module):
    """A model with BatchNorm and dropout; with ``overflow`` every product of it is infinite in half."""

    def __init__(self, overflow: bool = False, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout = dropout
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.overflow = overflow
        self.dtypes: set[torch.dtype] = set()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        self.dtypes.add(hidden.dtype)
        if self.overflow:
            hidden = hidden * 2.0**30 / 2.0**30
        hidden = nn.functional.dropout(torch.relu(self.norm(hidden)), self.dropout, self.training)
        logits: Tensor = self.last(hidden)
        return logits


class Block(nn.Module):
    """A part that FSDP2 shards on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.linear(self.norm(x)))


class Sharded(nn.Module):
    """A model of two blocks with a statistic of its own; inputs from 1000 on overflow in half.

    Without autocast, as FSDP2 runs it, everything is computed in the dtype of the gathered weights.
    """

    seen: Tensor

    def __init__(self, overflow: bool = False, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout, self.overflow = dropout, overflow
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.register_buffer("seen", torch.zeros(16, dtype=torch.float32))
        self.dtypes: set[torch.dtype] = set()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        self.dtypes.add(hidden.dtype)
        if self.overflow:
            hidden = hidden * 2.0**30 / 2.0**30
        if self.training:
            self.seen.lerp_(hidden.detach().float().mean(0), 0.1)
        for block in self.blocks:
            hidden = block(hidden)
        hidden = nn.functional.dropout(hidden, self.dropout, self.training)
        logits: Tensor = self.last(hidden)
        return logits.float()


def loss_fn(model: Any, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["labels"])


def batches(count: int, nan: int | None = None, seed: int = 7) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    found = [
        {"x": torch.randn(4, 8, generator=generator), "labels": torch.arange(4)}
        for _ in range(count)
    ]
    if nan is not None:
        found[nan]["x"][0, 0] = torch.nan
    return found


def accelerator(precision: str = "fp16", **given: Any) -> Any:
    """Return an accelerator that lowers a model on a CPU, which Accelerate itself leaves out."""
    made: Any = Accelerator(cpu=True, mixed_precision=precision, **given)
    if precision == "fp16":
        made.native_amp = True
        made.scaler = torch.amp.GradScaler("cpu", init_scale=INIT_SCALE)
    return made


def sharded_accelerator(precision: str = "fp16", **given: Any) -> Any:
    """Return an accelerator that shards with FSDP2 on CPUs, where Accelerate itself uses DDP."""
    half = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32)
    policy = half if precision == "fp16" else None
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        mixed_precision_policy=given.pop("policy", policy),
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        cpu_ram_efficient_loading=False,
    )
    made = accelerator(precision, fsdp_plugin=plugin, **given)
    shard_on_cpu(made, plugin)
    return made


def shard_on_cpu(accelerator: Any, plugin: FullyShardedDataParallelPlugin) -> None:
    """Let an accelerator do on CPUs what it does on GPUs with this plugin."""
    state = accelerator.state
    if state.mixed_precision != "no":
        plugin.set_mixed_precision(state.mixed_precision)
    state.fsdp_plugin, state.distributed_type = plugin, DistributedType.FSDP
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP


@dataclass
class Loop:
    """A training loop as Accelerate's documentation has it; with ``guard`` a configuration, guarded."""

    guard: dict[str, Any] | None = None
    precision: str = "fp16"
    accumulate: int = 1
    max_norm: float | None = None
    fused: bool = False
    overflow: bool = False
    dropout: float = 0.1
    repeatable: bool = True  # the loss comes from guard.forward
    sharded: bool = False  # by FSDP2
    run_dir: Path | None = None
    given: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)  # after each update

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        make = sharded_accelerator if self.sharded else accelerator
        self.accelerator = make(
            self.precision, gradient_accumulation_steps=self.accumulate, **self.given
        )
        self.attached: AcceleratorGuard | None = None
        if self.guard is not None:
            config = {"scale": {"init": INIT_SCALE}} | self.guard
            self.attached = attach(self.accelerator, config, run_dir=self.run_dir, log_every=1)
        kind = Sharded if self.sharded else Classifier
        self.plain: Any = kind(self.overflow, self.dropout)
        optimizer = AdamW(self.plain.parameters(), lr=0.05, fused=self.fused)
        scheduler = LambdaLR(optimizer, lambda step: 0.9**step)
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(
            self.plain, optimizer, scheduler
        )
        torch.manual_seed(1)

    def fit(self, data: list[Batch]) -> Loop:
        for batch in data:
            with self.accelerator.accumulate(self.model):
                if self.attached is not None and self.repeatable:
                    loss = self.attached.forward(loss_fn, batch)
                else:
                    loss = loss_fn(self.model, batch)
                self.losses.append(loss.item())
                self.accelerator.backward(loss)
                if self.max_norm is not None and self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), self.max_norm)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
                if self.accelerator.sync_gradients:
                    self.rates.append(self.scheduler.get_last_lr()[0])
        return self

    @property
    def counts(self) -> Any:
        assert self.attached is not None
        return self.attached.hosted.summary()

    def state(self) -> dict[str, Any]:
        """Return everything that a step changes; of sharded tensors, the parts of this rank."""
        moments = self.optimizer.state_dict()["state"]
        return {
            "model": {k: local_tensor(v).clone() for k, v in self.plain.state_dict().items()},
            "optimizer": {
                number: {name: local_tensor(value).clone() for name, value in held.items()}
                for number, held in moments.items()
            },
            "schedule": self.scheduler.state_dict()["last_epoch"],
            "rates": self.rates,
        }


def two_optimizers(guard: dict[str, Any] | None, boost: float) -> tuple[list[Tensor], Any]:
    """Train two models with SGD, both losses first; the first one's gradient overflows if boosted."""
    torch.manual_seed(0)
    hub = accelerator()
    attached = None if guard is None else attach(hub, {"scale": {"init": INIT_SCALE}} | guard)
    models = [nn.Linear(8, 1), nn.Linear(8, 1)]
    optimizers = [SGD(m.parameters(), lr=1.0) for m in models]
    first, second, opt_a, opt_b = hub.prepare(*models, *optimizers)
    before = models[1].weight.detach().clone()
    x = batches(1)[0]["x"]
    loss_a, loss_b = first(x).mean() * boost, second(x).mean()
    hub.backward(loss_a)
    hub.backward(loss_b)
    for model, optimizer in ((first, opt_a), (second, opt_b)):
        if guard is not None:  # alone, Accelerate unscales both optimizers each time
            hub.clip_grad_norm_(model.parameters(), 1e6)
        optimizer.step()
    return [before - models[1].weight.detach(), x.mean(0, keepdim=True)], attached
