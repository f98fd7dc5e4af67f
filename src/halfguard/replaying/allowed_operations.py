"""The operations that are run from a file: an incident may come from a stranger.

An operation is run if it computes numbers from tensors and does nothing else: torch tags it as ``core`` or
``pointwise``, or it is listed here; it writes to none of its arguments, draws no random numbers, reads at
least one tensor, and is given no text. The same rule decides what is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from halfguard.tracing.auditing.fp32_call import Call
from halfguard.tracing.call_arguments import is_written

_TAGS = (torch.Tag.core, torch.Tag.pointwise)
# Operations without these tags that often make the first bad number; they check the sizes of their inputs.
_ALSO = {
    "sum.default",
    "max.default",
    "min.default",
    "baddbmm.default",
    "dot.default",
    "mv.default",
    "addmv.default",
    "cumprod.default",
    "logsumexp.default",
    "linalg_vector_norm.default",
    "std.correction",
    "var_mean.correction",
    "mse_loss.default",
    "mse_loss_backward.default",
    "smooth_l1_loss.default",
    "huber_loss.default",
    "binary_cross_entropy.default",
    "binary_cross_entropy_with_logits.default",
    "nll_loss_forward.default",
    "nll_loss2d_forward.default",
    "_softmax_backward_data.default",
    *(f"_foreach_{name}.{kind}" for name in ("add", "mul", "div") for kind in ("Scalar", "List")),
    *(f"_foreach_{name}.ScalarList" for name in ("add", "mul", "div", "addcdiv", "addcmul")),
    *(f"_foreach_{name}.Scalar" for name in ("addcdiv", "addcmul", "lerp")),
    "_foreach_sqrt.default",
}
# Operations of the core that trust indices or sizes among their inputs: wrong ones reach other memory.
_NEVER = {
    "as_strided",
    "_embedding_bag",
    "embedding_dense_backward",
    "max_pool2d_with_indices_backward",
    "native_layer_norm_backward",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "_fft_c2r",
    "_adaptive_avg_pool2d_backward",
}


def without_writing(func: Any) -> Any:
    """Return the operation that computes what one such as ``div_`` writes; any other as it is."""
    name = func.overloadpacket.__name__
    if not func._schema.is_mutable or not name.endswith("_") or name.endswith("__"):
        return func
    packet = getattr(getattr(torch.ops, func.namespace), name[:-1], None)
    twin = getattr(packet, func._overloadname, func)
    same = [one.name for one in twin._schema.arguments] == [
        one.name for one in func._schema.arguments
    ]
    return twin if same else func


def reason_to_refuse(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return why a call is neither kept nor run from a file, or an empty string."""
    schema = func._schema.arguments
    name = func.overloadpacket.__name__
    call = Call(func, args, kwargs)
    if func.namespace != "aten" or name in _NEVER or not _is_listed(func, name):
        return "it is not among the operations that are run from a file"
    if any(is_written(one) for one in schema):
        return "it writes to its arguments"
    if call.is_random:
        return "it draws random numbers"
    given = [one.name for one in schema[: len(args)]]
    if len(args) > len(schema) or not set(kwargs) <= {one.name for one in schema} - set(given):
        return "it does not have these arguments"
    missing = {one.name for one in schema if not one.has_default_value()} - {*given, *kwargs}
    if missing:
        return f"its argument {min(missing)} is missing"
    if any(map(_has_text, (*args, *kwargs.values()))):
        return "an argument is text"
    return "" if call.tensors else "it is given no tensor"


def _is_listed(func: Any, name: str) -> bool:
    return any(tag in func.tags for tag in _TAGS) or f"{name}.{func._overloadname}" in _ALSO


def _has_text(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_text, value))
    return isinstance(value, str | bytes)
