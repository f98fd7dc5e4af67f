"""What ranks may have in common: parameters, masters, and buffers that nothing writes to.

A program writes to a buffer in two ways. Most writes are counted by torch, and seen on the host. A write
through ``.data``, as codebooks and averages of one's own are often made, is not: there the bits tell, which
are not what they were when the guard was made. If that is so on every rank, the buffer is each rank's own
business; on one rank alone, it may as well be a flipped bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from halfguard.dist.wrapping import local

Named = tuple[str, Tensor]
_PACKED = {
    getattr(torch, "float4_e2m1fn_x2", None)
}  # two numbers in a byte, which torch cannot copy


@dataclass
class Buffer:
    """A buffer, the tensor that it was, and how often that had been written to."""

    name: str
    module: nn.Module
    key: str
    tensor: Tensor | None = None
    version: int = 0

    def keep(self) -> None:
        """Count writes from here on. Tensors made in inference mode do not count theirs."""
        tensor: Tensor = getattr(self.module, self.key)
        counts = has_bits(tensor) and not tensor.is_inference()
        self.tensor = tensor if counts else None
        self.version = tensor._version if counts else 0

    @property
    def unwritten(self) -> Tensor | None:
        """The buffer, if it still is that tensor and nothing has written to it."""
        now: Tensor | None = getattr(self.module, self.key, None)
        if now is None or now is not self.tensor:
            return None
        return now if now._version == self.version else None


def parameters_to_compare(
    model: nn.Module, updated: Sequence[Named]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Names and tensors to compare, each with the one that lies on the ranks as it does."""
    own = dict(model.named_parameters())
    for name, parameter in own.items():
        yield name, parameter, parameter
    for name, tensor in updated:
        if name not in own:
            yield name, tensor, tensor
        elif tensor is not own[name]:
            yield f"{name} (master)", tensor, own[name]


def buffers_to_compare(model: nn.Module) -> Iterator[Buffer]:
    """Buffers that are nobody's running statistics, nor a cache, which no checkpoint would hold either."""
    for path, module in model.named_modules():
        if not isinstance(module, _NormBase):
            kept = (key for key in module._buffers if key not in module._non_persistent_buffers_set)
            for key in kept:
                if getattr(module, key) is None:
                    continue
                buffer = Buffer(f"{path}.{key}" if path else key, module, key)
                buffer.keep()
                yield buffer


def has_bits(tensor: Tensor) -> bool:
    """Whether a tensor is memory that can be read and sent; sparse, quantized and nested ones are more."""
    part = local(tensor)
    plain = part.layout is torch.strided and part.dtype not in _PACKED
    plain = plain and not (part.is_meta or part.is_quantized or part.is_nested)
    return plain and not is_traceable_wrapper_subclass(part)


def kind_of(value: object) -> str:
    """Dtype and local shape of a tensor, the value of a number, the type of anything else."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(local(value).shape)}"
    return repr(value) if isinstance(value, int | float) else type(value).__name__
