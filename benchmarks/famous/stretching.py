"""How models are made and stretched: the parts that rows share."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from benchmarks.famous.row import Change, matching

hf: Any = importlib.import_module("transformers")  # whose names exist at run time only


def build(name: str, sizes: dict[str, Any], attention: str = "sdpa", **changes: Any) -> nn.Module:
    """Return a model of transformers with random weights."""
    kind = getattr(hf, name)
    config = kind.config_class(**sizes | changes)
    config._attn_implementation, config._experts_implementation = attention, "eager"
    model: nn.Module = kind(config)
    return model


def with_offset(
    pattern: str, names: tuple[str, str], channel: int, small: float = 10.0, large: float = 1.2e4
) -> Change:
    """Return a change of biases that adds one large number to all scores, which softmax does not see."""

    def change(model: nn.Module) -> None:
        for _, module in matching(model, pattern):
            for name, value in zip(names, (small, large), strict=True):
                module.get_parameter(f"{name}.bias").view(-1, 16)[:, channel] = value

    return change


def set_channel(pattern: str, name: str, index: Any, value: float) -> Change:
    """Return a change that sets a part of a parameter to ``value``."""

    def change(model: nn.Module) -> None:
        for _, module in matching(model, pattern):
            module.get_parameter(name)[index] = value

    return change


def feed_channel(model: Any, gain: float = 1.0) -> nn.Module:
    """Give all tokens the same number in channel 0, and each MLP a unit that reads and writes only this one.

    Stretched, it is a large number in every token, and the model can still learn from the other channels.
    """
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        if not model.config.tie_word_embeddings:
            embeddings *= 50  # to 1, so that norms need not multiply it by more than half holds
        embeddings[:, 0] = 5 * embeddings.abs().mean()
        for module in model.modules():
            names = dict(module.named_parameters())
            if "gate_up_proj" in names:  # experts
                width = names["gate_up_proj"].shape
                names["gate_up_proj"][:, [0, width[1] // 2]] = gain * torch.eye(1, width[2])
                _write_one(names["down_proj"])
            elif "gate_proj.weight" in names:
                for name in ("gate_proj.weight", "up_proj.weight"):
                    names[name][0] = gain * torch.eye(1, names[name].shape[1])[0]
                _write_one(names["down_proj.weight"])
    return model  # type: ignore[no-any-return]


def _write_one(weight: torch.Tensor) -> None:
    weight[..., 0] = 0
    weight[..., 0, :] = 0
    weight[..., 0, 0] = 0.1
