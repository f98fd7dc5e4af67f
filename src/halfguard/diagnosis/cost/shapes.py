"""Find layers whose dimensions are slow on tensor cores, with the next larger size that is fast.

Tensor cores read operands in pieces of 16 bytes: 8 half values. A dimension that is not a multiple of 8 is
padded, or runs slower. NVIDIA's guide to matrix multiplication says so, and prefers 64 on the A100 and later:
https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from halfguard.records.cost import UnalignedDimension

MULTIPLE = 8
IMAGE_CHANNELS = 4  # libraries have special kernels for the first layer of an image network
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def find_unaligned_dimensions(model: nn.Module) -> tuple[UnalignedDimension, ...]:
    """Return every dimension that is not a multiple of 8, those of the largest layers first."""
    sizes = {
        name: sum(p.numel() for p in module.parameters(recurse=False) if p.dim() > 1)
        for name, module in model.named_modules()
        if any(_dimensions(module))
    }
    total = sum(sizes.values()) or 1
    found = [
        UnalignedDimension(
            module=name,
            kind=type(module).__name__,
            dimension=dimension,
            size=size,
            better=-(-size // MULTIPLE) * MULTIPLE,
            share=sizes[name] / total,
        )
        for name, module in model.named_modules()
        for dimension, size in _dimensions(module)
        if size % MULTIPLE
    ]
    return tuple(sorted(found, key=lambda shape: -shape.share))


def _dimensions(module: nn.Module) -> Iterator[tuple[str, int]]:
    if isinstance(module, nn.Linear):
        yield "in_features", module.in_features
        yield "out_features", module.out_features
    elif isinstance(module, (*_CONVOLUTIONS, *_TRANSPOSED)):
        if module.groups > 1:  # many small products, which use other kernels
            return
        if module.in_channels > IMAGE_CHANNELS:
            yield "in_channels", module.in_channels
        yield "out_channels", module.out_channels
    elif isinstance(module, nn.MultiheadAttention):
        yield "head_dim (embed_dim / num_heads)", module.head_dim
    elif isinstance(module, nn.RNNBase):
        yield "input_size", module.input_size
        yield "hidden_size", module.hidden_size
