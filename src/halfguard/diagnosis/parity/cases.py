"""The cases of the self-test: operations at the sizes of real layers, their data, and float64 results.

Data are chosen so that bounds are tight and faults show: products of one sign in a sum, logits around 100.
Batch norm gets FP32 weights, as under autocast: without any, torch on a CPU rounds its statistics to half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from halfguard.diagnosis.parity import bounds
from halfguard.diagnosis.parity.bounds import Arithmetic

COMPARED = 2  # samples of the batch that are compared with float64
EPS = 1e-5

Tensors = tuple[Tensor, ...]
Operations = Mapping[str, Callable[..., Tensor]]


def _convolution(x: Tensor, weight: Tensor) -> Tensor:
    return functional.conv2d(x, weight, padding=1)


def _layer_norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], eps=EPS)


def _batch_norm(x: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    weight = torch.ones(x.shape[1], dtype=wide, device=x.device)
    return functional.batch_norm(x, None, None, weight, 0 * weight, training=True, eps=EPS)


def _softmax(x: Tensor) -> Tensor:
    return functional.softmax(x, -1)


OPERATIONS: Operations = {
    "matmul": torch.matmul,
    "convolution": _convolution,
    "layer norm": _layer_norm,
    "batch norm": _batch_norm,
    "softmax": _softmax,
    "attention": functional.scaled_dot_product_attention,
}


@dataclass(frozen=True)
class Case:
    """The inputs of an operation, and the part of them that is compared with float64."""

    make: Callable[[int, torch.Generator], Tensors]
    bound: Callable[[Tensors, Tensor, Arithmetic], Tensor]  # for inputs and results in float64
    select: Callable[[Tensor, int], Tensor]  # the compared part of an input or output
    selectable: tuple[bool, ...]  # for each input, whether select applies; others are used whole


def _batch_elements(x: Tensor, batch: int) -> Tensor:
    chosen = torch.linspace(0, batch - 1, min(batch, COMPARED)).long()
    return x[chosen.to(x.device)]


def _channels(x: Tensor, batch: int) -> Tensor:  # noqa: ARG001  batch norm needs the whole batch
    return x[:, :8]


def _signed_uniform(shape: tuple[int, ...], dim: int, generator: torch.Generator) -> Tensor:
    """Return uniform numbers with one sign per index of ``dim``."""
    signs = torch.ones(len(shape), dtype=torch.long).tolist()
    signs[dim] = shape[dim]
    sign = torch.randint(0, 2, signs, generator=generator) * 2 - 1
    return torch.rand(shape, generator=generator) * sign


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator)


CASES: Mapping[str, Case] = {
    "matmul": Case(
        lambda n, g: (_signed_uniform((n, 64, 2048), 1, g), _signed_uniform((2048, 512), 1, g)),
        lambda x, out, a: bounds.products(out, out.abs(), x[0].shape[-1], a),
        _batch_elements,
        (True, False),
    ),
    "convolution": Case(
        lambda n, g: (
            torch.rand(n, 64, 56, 56, generator=g),
            _signed_uniform((64, 64, 3, 3), 0, g),
        ),
        lambda x, out, a: bounds.products(out, out.abs(), x[1][0].numel(), a),
        _batch_elements,
        (True, False),
    ),
    "layer norm": Case(
        lambda n, g: (1 + 2 * _normal((n, 128, 1024), g),),
        lambda x, out, a: bounds.norm(x[0], out, (-1,), a),
        _batch_elements,
        (True,),
    ),
    "batch norm": Case(
        lambda n, g: (1 + 2 * _normal((n, 64, 56, 56), g),),
        lambda x, out, a: bounds.norm(x[0], out, (0, 2, 3), a),
        _channels,
        (True,),
    ),
    # Logits around 100: exp overflows FP32 unless the maximum is subtracted.
    "softmax": Case(
        lambda n, g: (100 + _normal((n, 64, 2048), g),),
        lambda x, out, a: bounds.softmax(x[0], out, a),
        _batch_elements,
        (True,),
    ),
    "attention": Case(
        lambda n, g: tuple(0.7 * _normal((n, 8, 256, 64), g) for _ in range(3)),
        lambda x, out, a: bounds.attention(x[0], x[1], x[2], out, a),
        _batch_elements,
        (True, True, True),
    ),
}
