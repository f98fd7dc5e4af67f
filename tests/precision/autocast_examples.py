"""A call for every operation that PyTorch's page on CUDA autocast names.

The page: https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior. The keys are its
words, list by list, so that a reader can compare; the values call the operation the way people do.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Call = Callable[[torch.dtype], Tensor]


def unary(function: Callable[[Tensor], Tensor]) -> Call:
    return lambda dtype: function(torch.full((4, 4), 0.5, dtype=dtype))


def of(function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> Call:
    return lambda dtype: function(*(torch.full(shape, 0.5, dtype=dtype) for shape in shapes))


def classes(function: Callable[..., Tensor], *shape: int) -> Call:
    return lambda dtype: function(
        torch.full((4, 4), 0.5, dtype=dtype), torch.zeros(shape, dtype=torch.int64)
    )


def cell(kind: type[nn.Module]) -> Call:
    def call(dtype: torch.dtype) -> Tensor:
        out = kind(4, 4)(torch.ones(2, 4, dtype=dtype))
        return out[0] if isinstance(out, tuple) else out

    return call


M, V, B = (4, 4), (4,), (2, 4, 4)

TO_FLOAT16: dict[str, Call] = {
    "__matmul__": of(operator.matmul, M, M),
    "addbmm": of(torch.addbmm, M, B, B),
    "addmm": of(torch.addmm, M, M, M),
    "addmv": of(torch.addmv, V, M, V),
    "addr": of(torch.addr, M, V, V),
    "baddbmm": of(torch.baddbmm, B, B, B),
    "bmm": of(torch.bmm, B, B),
    "multi_dot": of(lambda *m: torch.linalg.multi_dot(m), M, M, M),
    "conv1d": of(F.conv1d, (1, 2, 8), (2, 2, 3)),
    "conv2d": of(F.conv2d, (1, 2, 8, 8), (2, 2, 3, 3)),
    "conv3d": of(F.conv3d, (1, 2, 4, 4, 4), (2, 2, 3, 3, 3)),
    "conv_transpose1d": of(F.conv_transpose1d, (1, 2, 8), (2, 2, 3)),
    "conv_transpose2d": of(F.conv_transpose2d, (1, 2, 8, 8), (2, 2, 3, 3)),
    "conv_transpose3d": of(F.conv_transpose3d, (1, 2, 4, 4, 4), (2, 2, 3, 3, 3)),
    "GRUCell": cell(nn.GRUCell),
    "linear": of(F.linear, M, M, V),
    "LSTMCell": cell(nn.LSTMCell),
    "matmul": of(torch.matmul, M, M),
    "mm": of(torch.mm, M, M),
    "mv": of(torch.mv, M, V),
    "prelu": of(F.prelu, M, (1,)),
    "RNNCell": cell(nn.RNNCell),
}

# Registered by torch's source, though the page does not name them.
ALSO_TO_FLOAT16: dict[str, Call] = {
    "scaled_dot_product_attention": of(F.scaled_dot_product_attention, B, B, B),
    "einsum": of(lambda a, b: torch.einsum("ij,jk->ik", a, b), M, M),
    "vecdot": of(torch.linalg.vecdot, M, M),
    "nn.LSTM": cell(nn.LSTM),
    "nn.GRU": cell(nn.GRU),
    "nn.RNN": cell(nn.RNN),
}

TO_FLOAT32: dict[str, Call] = {
    "__pow__": unary(lambda x: x**2),
    "__rdiv__": unary(lambda x: x.__rdiv__(1.0)),
    "__rpow__": unary(lambda x: 2.0**x),
    "__rtruediv__": unary(lambda x: 1.0 / x),
    "acos": unary(torch.acos),
    "asin": unary(torch.asin),
    "binary_cross_entropy_with_logits": of(F.binary_cross_entropy_with_logits, M, M),
    "cosh": unary(torch.cosh),
    "cosine_embedding_loss": of(F.cosine_embedding_loss, M, M, V),
    "cdist": of(torch.cdist, M, M),
    "cosine_similarity": of(F.cosine_similarity, M, M),
    "cross_entropy": classes(F.cross_entropy, 4),
    "cumprod": unary(lambda x: x.cumprod(0)),
    "cumsum": unary(lambda x: x.cumsum(0)),
    "dist": of(torch.dist, M, M),
    "erfinv": unary(torch.erfinv),
    "exp": unary(torch.exp),
    "expm1": unary(torch.expm1),
    "group_norm": of(lambda x: F.group_norm(x, 2), (1, 4, 4)),
    "hinge_embedding_loss": of(F.hinge_embedding_loss, M, M),
    "kl_div": of(lambda a, b: F.kl_div(a, b, reduction="sum"), M, M),
    "l1_loss": of(F.l1_loss, M, M),
    "layer_norm": of(lambda x, w: F.layer_norm(x, (4,), w, w), M, V),
    "log": unary(torch.log),
    "log_softmax": unary(lambda x: F.log_softmax(x, -1)),
    "log10": unary(torch.log10),
    "log1p": unary(torch.log1p),
    "log2": unary(torch.log2),
    "margin_ranking_loss": of(F.margin_ranking_loss, V, V, V),
    "mse_loss": of(F.mse_loss, M, M),
    "multilabel_margin_loss": classes(F.multilabel_margin_loss, 4, 4),
    "multi_margin_loss": classes(F.multi_margin_loss, 4),
    "nll_loss": classes(F.nll_loss, 4),
    "norm": unary(torch.norm),
    "normalize": unary(F.normalize),
    "pdist": unary(F.pdist),
    "poisson_nll_loss": of(F.poisson_nll_loss, M, M),
    "pow": unary(lambda x: torch.pow(x, 2)),
    "prod": unary(torch.prod),
    "reciprocal": unary(torch.reciprocal),
    "rsqrt": unary(torch.rsqrt),
    "sinh": unary(torch.sinh),
    "smooth_l1_loss": of(F.smooth_l1_loss, M, M),
    "soft_margin_loss": of(F.soft_margin_loss, M, M),
    "softmax": unary(lambda x: x.softmax(-1)),
    "softmin": unary(lambda x: F.softmin(x, -1)),
    "softplus": unary(F.softplus),
    "sum": unary(torch.sum),
    "renorm": unary(lambda x: torch.renorm(x, 2, 0, 1.0)),
    "tan": unary(torch.tan),
    "triplet_margin_loss": of(F.triplet_margin_loss, M, M, M),
}

ALSO_TO_FLOAT32: dict[str, Call] = {
    "rms_norm": unary(lambda x: F.rms_norm(x, (4,))),
    "logsumexp": unary(lambda x: x.logsumexp(0)),
    "huber_loss": of(F.huber_loss, M, M),
    "vector_norm": unary(torch.linalg.vector_norm),
    "matrix_norm": unary(torch.linalg.matrix_norm),
    "norm(dim)": unary(lambda x: x.norm(dim=0)),
    "norm(p, dim, keepdim)": unary(lambda x: x.norm(1, dim=0, keepdim=True)),
    "sum(dim)": unary(lambda x: x.sum(1, keepdim=True)),
    "prod(dim)": unary(lambda x: x.prod(0)),
    "interpolate": of(lambda x: F.interpolate(x, scale_factor=2), (1, 2, 4, 4)),
}


def pair(function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> Callable[..., Tensor]:
    """Call with one dtype for each tensor."""
    return lambda *dtypes: function(
        *(torch.full(s, 0.5, dtype=d) for s, d in zip(shapes, dtypes, strict=False))
    )


INDEX = torch.zeros(4, 4, dtype=torch.int64)
WIDEST: dict[str, Callable[..., Tensor]] = {
    "addcdiv": pair(lambda a, b: torch.addcdiv(a, b, b), V, V),
    "addcmul": pair(lambda a, b: torch.addcmul(a, b, b), V, V),
    "atan2": pair(torch.atan2, V, V),
    "bilinear": pair(lambda a, b: F.bilinear(a, b, a.new_ones(2, 4, 4)), M, M),
    "cross": pair(lambda a, b: torch.cross(a, b, dim=1), (2, 3), (2, 3)),
    "dot": pair(torch.dot, V, V),
    "grid_sample": pair(
        lambda a, b: F.grid_sample(a, b, align_corners=False), (1, 1, 4, 4), (1, 2, 2, 2)
    ),
    "index_put": pair(lambda a, b: torch.index_put(a, (torch.tensor([0]),), b[:1]), V, V),
    "scatter_add": pair(lambda a, b: torch.scatter_add(a, 0, INDEX.to(a.device), b), M, M),
    "tensordot": pair(lambda a, b: torch.tensordot(a, b, dims=1), M, M),
}
ALSO_WIDEST: dict[str, Callable[..., Tensor]] = {"vdot": pair(torch.vdot, V, V)}

BANNED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "binary_cross_entropy": F.binary_cross_entropy,
    "BCELoss": nn.BCELoss(),
}
