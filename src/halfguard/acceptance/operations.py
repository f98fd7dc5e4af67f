"""A call of every operation that CUDA's autocast lists: its arguments, and the stages of its computation.

Operations are called by the dispatcher's names, as ``autocast_ops`` has them. Tensors are small and lie in
(0.1, 0.9): inside the domain of every function here, and without cancellation in products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from halfguard.autocast_ops import RULES


@dataclass(frozen=True)
class Random:
    """A floating-point argument, filled from a seed; ``log`` makes it log-probabilities."""

    shape: tuple[int, ...]
    log: bool = False


@dataclass(frozen=True)
class Sample:
    """The arguments of one call.

    ``stages`` is how often a value on its way to the result is rounded to the dtype of the inputs: once in a
    single kernel, more often where one kernel's result enters the next. ``cpu_stages`` is the number on a
    CPU, if it may be another one there. ``only_cuda``: other devices have no kernel, and a few GPUs have none
    either; ``exact`` then gives the result in float64.
    """

    arguments: tuple[Any, ...]
    stages: int = 1
    cpu_stages: int | None = None
    only_cuda: bool = False
    exact: Callable[..., Tensor] | None = None


def t(*shape: int) -> Random:
    """Return a floating-point argument of this shape."""
    return Random(shape)


def _sample(*arguments: Any, **options: Any) -> Sample:
    return Sample(arguments, **options)


def _lstm(gates: Tensor, hidden: Tensor, cell: Tensor, *bias: Tensor) -> Tensor:
    i, f, g, o = (gates + hidden + sum(bias)).chunk(4, 1)
    return o.sigmoid() * (f.sigmoid() * cell + i.sigmoid() * g.tanh()).tanh()


def _gru(gates: Tensor, hidden: Tensor, state: Tensor, bias: Tensor, hidden_bias: Tensor) -> Tensor:
    r, z, n = (gates + bias).chunk(3, 1)
    hr, hz, hn = (hidden + hidden_bias).chunk(3, 1)
    update = (z + hz).sigmoid()
    return (1 - update) * (n + (r + hr).sigmoid() * hn).tanh() + update * state


def _transposed(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return functional.conv_transpose2d(x, weight)


def _convolved(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return functional.conv2d(x, weight)


M, V, B = t(4, 6), t(6), t(2, 4, 4)
SQUARE = t(4, 4)
HEADS = t(1, 2, 4, 8)
IMAGE, KERNEL = t(1, 2, 5, 5), t(2, 2, 3, 3)
_CLASSES = torch.tensor([0, 2, 1, 3])
_SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
_CELL = (t(2, 4), t(2, 4), t(8, 4), t(8, 4), t(8), t(8))
_RNN = (t(2, 4), t(2, 4), t(4, 4), t(4, 4), t(4), t(4))
_PLAIN_CONVOLUTION = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)

LOWER: dict[str, Sample] = {
    "_convolution": _sample(IMAGE, KERNEL, None, *_PLAIN_CONVOLUTION, False, True, True, False),
    "_convolution.deprecated": _sample(IMAGE, KERNEL, None, *_PLAIN_CONVOLUTION, False, True, True),
    "conv1d": _sample(t(1, 2, 8), t(2, 2, 3)),
    "conv2d": _sample(IMAGE, KERNEL),
    "conv3d": _sample(t(1, 2, 4, 4, 4), t(2, 2, 3, 3, 3)),
    "conv_tbc": _sample(t(8, 1, 2), t(3, 2, 2), t(2), 0, stages=4),
    # A CPU without instructions for half rounds a column for each place of the kernel, and adds them in half.
    "conv_transpose1d": _sample(t(1, 2, 4), t(2, 2, 3), cpu_stages=1 + 3),
    "conv_transpose2d.input": _sample(t(1, 2, 3, 3), KERNEL, cpu_stages=1 + 9),
    "conv_transpose3d.input": _sample(t(1, 2, 2, 2, 2), t(2, 2, 2, 2, 2), cpu_stages=1 + 8),
    "convolution": _sample(IMAGE, KERNEL, None, *_PLAIN_CONVOLUTION),
    "cudnn_convolution": _sample(
        IMAGE,
        KERNEL,
        *([0, 0], [1, 1], [1, 1], 1, False, True, False),
        only_cuda=True,
        exact=_convolved,
    ),
    "cudnn_convolution_transpose": _sample(
        t(1, 2, 3, 3),
        KERNEL,
        *([0, 0], [0, 0], [1, 1], [1, 1], 1, False, True, False),
        only_cuda=True,
        exact=_transposed,
    ),
    "prelu": _sample(M, t(1)),
    "addmm": _sample(SQUARE, SQUARE, SQUARE, stages=2),
    "addmv": _sample(t(4), M, V, stages=2),
    "addr": _sample(M, t(4), V, stages=2),
    "matmul": _sample(M, t(6, 4)),
    "einsum": _sample("ij,jk->ik", [M, t(6, 4)]),
    "mm": _sample(M, t(6, 4)),
    "mv": _sample(M, V),
    "linalg_vecdot": _sample(M, M, stages=2),
    "linear": _sample(M, t(4, 6), t(4), stages=2),
    "addbmm": _sample(SQUARE, B, B, stages=3),
    "baddbmm": _sample(B, B, B, stages=2),
    "bmm": _sample(B, B),
    "chain_matmul": _sample([SQUARE, SQUARE, SQUARE], stages=2),
    "linalg_multi_dot": _sample([SQUARE, SQUARE, SQUARE], stages=2),
    "_thnn_fused_lstm_cell": _sample(
        t(2, 16), t(2, 16), t(2, 4), t(16), t(16), stages=6, only_cuda=True, exact=_lstm
    ),
    "_thnn_fused_gru_cell": _sample(
        t(2, 12), t(2, 12), t(2, 4), t(12), t(12), stages=6, only_cuda=True, exact=_gru
    ),
    "lstm_cell": _sample(t(2, 4), [t(2, 4), t(2, 4)], t(16, 4), t(16, 4), t(16), t(16), stages=6),
    "gru_cell": _sample(t(2, 4), t(2, 4), t(12, 4), t(12, 4), t(12), t(12), stages=6),
    "rnn_tanh_cell": _sample(*_RNN, stages=4),
    "rnn_relu_cell": _sample(*_RNN, stages=4),
    "_scaled_dot_product_flash_attention": _sample(
        HEADS,
        HEADS,
        HEADS,
        stages=3,
        only_cuda=True,
        exact=functional.scaled_dot_product_attention,
    ),
    "scaled_dot_product_attention": _sample(HEADS, HEADS, HEADS, stages=3),
}

_UNARY = [
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p"),
    *("reciprocal", "rsqrt", "sinh", "tan", "softplus"),
]
_INTERPOLATED = [
    *("upsample_bilinear2d", "_upsample_bilinear2d_aa"),
    *("upsample_bicubic2d", "_upsample_bicubic2d_aa"),
]

FP32: dict[str, Sample] = {
    **dict.fromkeys(_UNARY, _sample(M)),
    "pow.Tensor_Scalar": _sample(M, 2.5),
    "pow.Tensor_Tensor": _sample(M, M),
    "pow.Scalar": _sample(2.5, M),
    "layer_norm": _sample(M, [6], V, V),
    "native_layer_norm": _sample(M, [6], V, V, 1e-5),
    "rms_norm": _sample(M, [6], V, 1e-5),
    "group_norm": _sample(t(2, 4, 4), 2, t(4), t(4)),
    "frobenius_norm.dim": _sample(M, [0, 1]),
    "nuclear_norm": _sample(M),
    "nuclear_norm.dim": _sample(M, [0, 1]),
    "cosine_similarity": _sample(M, M),
    "poisson_nll_loss": _sample(M, M, True, False, 1e-8, 1),
    "cosine_embedding_loss": _sample(M, M, _SIGNS[:4]),
    "nll_loss": _sample(Random((4, 6), log=True), _CLASSES),
    "nll_loss2d": _sample(Random((1, 4, 2, 2), log=True), _CLASSES.view(1, 2, 2)),
    "hinge_embedding_loss": _sample(M, _SIGNS),
    "kl_div": _sample(Random((4, 6), log=True), M, 2),
    "margin_ranking_loss": _sample(V, V, _SIGNS),
    "multilabel_margin_loss": _sample(SQUARE, torch.tensor([[0, 2, -1, 0]] * 4)),
    "soft_margin_loss": _sample(M, _SIGNS.expand(4, 6)),
    "triplet_margin_loss": _sample(M, M, M),
    "multi_margin_loss": _sample(M, _CLASSES),
    "binary_cross_entropy_with_logits": _sample(M, M),
    **{name: _sample(M, M) for name in ["l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss"]},
    "dist": _sample(M, M),
    "pdist": _sample(M),
    "cdist": _sample(M, M),
    "renorm": _sample(M, 2, 0, 0.5),
    "logsumexp": _sample(M, [1]),
    **{
        f"{kind}1d": _sample(t(1, 2, 4), [7])
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
    },
    **{
        f"{kind}2d": _sample(t(1, 2, 3, 3), [5, 5])
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
    },
    **{
        f"{kind}3d": _sample(t(1, 1, 3, 3, 3), [4, 4, 4])
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
    },
    "upsample_linear1d": _sample(t(1, 2, 4), [7], False),
    **dict.fromkeys(_INTERPOLATED, _sample(t(1, 2, 3, 3), [5, 5], False)),
    "upsample_trilinear3d": _sample(t(1, 1, 3, 3, 3), [4, 4, 4], False),
}

FP32_ACCUMULATE: dict[str, Sample] = {
    "prod": _sample(M),
    "prod.dim_int": _sample(M, 1),
    "softmax.int": _sample(M, -1),
    "log_softmax.int": _sample(M, -1),
    "cumprod": _sample(M, 1),
    "cumsum": _sample(M, 1),
    "linalg_vector_norm": _sample(M),
    "linalg_matrix_norm": _sample(M, 1),
    "linalg_matrix_norm.str_ord": _sample(M, "fro"),
    "sum": _sample(M),
    "sum.dim_IntList": _sample(M, [1]),
    "norm.Scalar": _sample(M, 2),
    "norm.ScalarOpt_dim": _sample(M, 2, [1]),
}

WIDEST: dict[str, Sample] = {
    "addcdiv": _sample(M, M, M, stages=2),
    "addcmul": _sample(M, M, M, stages=2),
    "atan2": _sample(M, M),
    "bilinear": _sample(t(2, 4), t(2, 4), t(3, 4, 4), t(3), stages=3),
    "cross": _sample(t(4, 3), t(4, 3), 1, stages=2),
    "dot": _sample(V, V),
    "vdot": _sample(V, V),
    "grid_sampler": _sample(t(1, 2, 4, 4), t(1, 3, 3, 2), 0, 0, False, stages=2),
    "index_put": _sample(V, [torch.tensor([0, 3])], t(2)),
    "tensordot": _sample(M, t(6, 4), [1], [0]),
    "scatter_add": _sample(V, 0, torch.tensor([0, 3]), t(2)),
}

BANNED: dict[str, Sample] = {"binary_cross_entropy": _sample(M, M)}

SAMPLES: dict[str, Sample] = LOWER | FP32 | FP32_ACCUMULATE | WIDEST | BANNED
assert SAMPLES.keys() == RULES.keys()  # noqa: S101 - an operation without a sample would not be checked


def operation(name: str) -> Any:
    """Return the dispatcher's operation."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def make_arguments(sample: Sample, seed: int = 0) -> tuple[list[Any], list[Tensor]]:
    """Return the arguments of a call, with float64 tensors on the CPU, and these tensors in order."""
    generator = torch.Generator().manual_seed(seed)
    tensors: list[Tensor] = []

    def fill(value: Any) -> Any:
        if isinstance(value, list) and any(isinstance(part, Random) for part in value):
            return [fill(part) for part in value]
        if not isinstance(value, Random):
            return value
        made = 0.1 + 0.8 * torch.rand(value.shape, generator=generator, dtype=torch.float64)
        tensors.append(made.log_softmax(1) if value.log else made)
        return tensors[-1]

    return [fill(value) for value in sample.arguments], tensors


def replace_tensors(arguments: Sequence[Any], by: Callable[[Tensor], Tensor]) -> list[Any]:
    """Return the arguments with every tensor replaced, in lists as well."""

    def replaced(value: Any) -> Any:
        if isinstance(value, list):
            return [replaced(part) for part in value]
        return by(value) if isinstance(value, Tensor) else value

    return [replaced(value) for value in arguments]
