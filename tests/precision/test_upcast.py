"""Adapters over a frozen half base, and half checkpoints that evaluation can load."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

from halfguard.errors import UsageError
from halfguard.precision.upcast import half_state_dict, upcast_trainable
from tests.checkpoints.helper import Tied
from tests.support.devices import chosen_device


class Adapter(nn.Module):
    """A frozen half layer with a trainable low-rank path beside it."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).half().requires_grad_(False)
        self.down = nn.Linear(width, rank, bias=False).half()
        self.up = nn.Linear(rank, width, bias=False).half()
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Model(nn.Module):
    def __init__(self, *, checkpointing: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Adapter(16, 2) for _ in range(3)])
        self.checkpointing = checkpointing

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointing else layer(x)
        return x


ADAPTERS = [f"layers.{i}.{part}.weight" for i in range(3) for part in ("down", "up")]


def train(model: Model, steps: int) -> list[float]:
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    scaler = torch.amp.GradScaler(chosen_device().type, init_scale=256.0)
    x = torch.randn(32, 16)
    y = torch.randn(32, 16)
    losses = []
    for _ in range(steps):
        with torch.autocast(chosen_device().type, torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("checkpointing", [False, True])
def test_adapters_train_with_torchs_scaler_once_they_are_fp32(
    seed: object, checkpointing: bool
) -> None:
    model = Model(checkpointing=checkpointing)
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        train(model, 1)
    base = {n: p.clone() for n, p in model.named_parameters() if ".base." in n}
    assert upcast_trainable(model) == ADAPTERS
    assert upcast_trainable(model) == []
    losses = train(model, 60)
    assert losses[-1] < 0.85 * losses[0]
    for name, param in model.named_parameters():
        assert param.dtype is (torch.float16 if name in base else torch.float32)
        assert name not in base or torch.equal(param, base[name])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_optimizer_built_before_keeps_its_parameters_and_its_state_can_be_cast(
    seed: object, dtype: torch.dtype
) -> None:
    model = nn.Linear(3, 2).to(dtype)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 3, dtype=dtype)).sum().backward()
    optimizer.step()
    assert upcast_trainable(model) == ["weight", "bias"]
    optimizer.load_state_dict(optimizer.state_dict())
    before = model.weight.detach().clone()
    assert model.weight.grad.dtype is torch.float32
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert optimizer.state[model.weight]["momentum_buffer"].dtype is torch.float32
    assert not torch.equal(before, model.weight)


def test_a_half_checkpoint_is_loaded_by_evaluation(seed: object, tmp_path: Path) -> None:
    model = Tied()
    torch.save(half_state_dict(model), tmp_path / "half.pt")
    saved = torch.load(tmp_path / "half.pt", weights_only=True)
    other = Tied()
    other.load_state_dict(saved)
    assert saved["norm.num_batches_tracked"].dtype is torch.int64
    assert saved["embed.weight"].data_ptr() == saved["head.weight"].data_ptr()
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            assert saved[name].dtype is torch.float16
            assert torch.equal(other.state_dict()[name], value.half().float())
    model.norm.running_mean.add_(1.0)
    assert half_state_dict(model.half())["norm.running_mean"].eq(1.0).all()


def test_a_half_checkpoint_is_a_copy(seed: object) -> None:
    model = nn.Linear(2, 2).half()
    saved = half_state_dict(model)
    before = saved["weight"].clone()
    nn.init.zeros_(model.weight)
    assert torch.equal(saved["weight"], before)


@pytest.mark.parametrize(
    ("value", "said"),
    [(65520.0, "1 beyond 65504"), (torch.nan, "1 NaN"), (-torch.inf, "1 infinite")],
)
@pytest.mark.parametrize("name", ["embed.weight", "norm.running_var"])
def test_nothing_poisoned_is_saved(seed: object, name: str, value: float, said: str) -> None:
    model = Tied()
    model.state_dict()[name].view(-1)[1] = value
    with pytest.raises(UsageError) as caught:
        half_state_dict(model)
    assert f"{name} ({said})" in caught.value.message
    model.state_dict()[name].view(-1)[1] = 65519.0
    assert half_state_dict(model)[name].view(-1)[1] == 65504.0


def test_a_model_without_floating_point_tensors() -> None:
    model = nn.Module()
    model.register_buffer("steps", torch.ones(2, dtype=torch.int64))
    assert half_state_dict(model)["steps"].tolist() == [1, 1]
    assert half_state_dict(nn.Identity()) == {}
