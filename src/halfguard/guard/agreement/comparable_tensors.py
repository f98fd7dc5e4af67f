"""The tensors that ranks can be compared in: parameters, masters, and buffers that nothing writes to.

A program writes to a buffer in two ways. Most writes are counted by torch, and seen on the host. Writes
through ``.data``, common for codebooks and hand-written averages, are not counted; they show as bits that
differ from those at construction. If the bits changed on every rank, the buffer belongs to each rank alone.
If they changed on one rank only, a flipped bit is as likely, and it is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from halfguard.dist.wrapping import local_tensor

NamedTensor = tuple[str, Tensor]
_PACKED = {
    getattr(torch, "float4_e2m1fn_x2", None)
}  # two numbers in a byte, which torch cannot copy


@dataclass
class TrackedBuffer:
    """A buffer with its tensor and version counter at the time of ``keep``."""

    name: str
    module: nn.Module
    key: str
    tensor: Tensor | None = None
    version: int = 0

    def keep(self) -> None:
        """Start counting writes. Tensors made in inference mode have no version counter."""
        tensor: Tensor = getattr(self.module, self.key)
        counts = is_plain_memory(tensor) and not tensor.is_inference()
        self.tensor = tensor if counts else None
        self.version = tensor._version if counts else 0

    @property
    def unwritten(self) -> Tensor | None:
        """The buffer, if it is still the same tensor and nothing has written to it."""
        now: Tensor | None = getattr(self.module, self.key, None)
        if now is None or now is not self.tensor:
            return None
        return now if now._version == self.version else None


def parameters_to_compare(
    model: nn.Module, updated: Sequence[NamedTensor]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name and tensor to compare, and the parameter that has the same layout over ranks."""
    own = dict(model.named_parameters())
    for name, parameter in own.items():
        yield name, parameter, parameter
    for name, tensor in updated:
        if name not in own:
            yield name, tensor, tensor
        elif tensor is not own[name]:
            yield f"{name} (master)", tensor, own[name]


def buffers_to_compare(model: nn.Module) -> Iterator[TrackedBuffer]:
    """Yield persistent buffers that are not running statistics; the others are caches."""
    for path, module in model.named_modules():
        if not isinstance(module, _NormBase):
            kept = (key for key in module._buffers if key not in module._non_persistent_buffers_set)
            for key in kept:
                if getattr(module, key) is None:
                    continue
                buffer = TrackedBuffer(f"{path}.{key}" if path else key, module, key)
                buffer.keep()
                yield buffer


def is_plain_memory(tensor: Tensor) -> bool:
    """Return whether a tensor can be read and sent as bytes; sparse, quantized and nested ones cannot."""
    part = local_tensor(tensor)
    plain = part.layout is torch.strided and part.dtype not in _PACKED
    plain = plain and not (part.is_meta or part.is_quantized or part.is_nested)
    return plain and not is_traceable_wrapper_subclass(part)


def describe_kind(value: object) -> str:
    """Return dtype and local shape of a tensor, the value of a number, the type of anything else."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(local_tensor(value).shape)}"
    return repr(value) if isinstance(value, int | float) else type(value).__name__
