"""Compare the health of 2,000 tensors in one fused pass with the loop that people write."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from benchmarks.table import print_table
from halfguard.numerics.health import health
from halfguard.numerics.histogram import histogram
from halfguard.workload.timing import time_interleaved


def naive(tensors: list[Tensor]) -> Tensor:
    """Compute the same statistics, one tensor at a time, without a host sync."""
    rows = []
    for tensor in tensors:
        magnitude, finite = tensor.abs(), tensor.isfinite()
        nonzero = finite & (magnitude > 0)
        columns = [
            torch.where(finite, magnitude, 0).max(),
            torch.where(nonzero, magnitude, torch.inf).min(),
            tensor.norm(),
            tensor.isnan().sum(),
            (tensor == torch.inf).sum(),
            (tensor == -torch.inf).sum(),
            (tensor == 0).sum(),
            (finite & (magnitude >= 65520)).sum(),
            (nonzero & (magnitude <= 2**-25)).sum(),
        ]
        rows.append(torch.stack([column.double() for column in columns]))
    return torch.stack(rows)


def make_parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=__doc__)


def main() -> None:
    make_parser().parse_args()
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1000, generator=generator) for _ in range(2000)]
    seconds = time_interleaved(
        {
            "naive loop": lambda: naive(tensors),
            "halfguard health": lambda: health(tensors),
            "halfguard histogram": lambda: histogram(tensors),
        },
        rounds=15,
    )
    print_table("2,000 tensors of 1,000 float32", seconds, against="naive loop")


if __name__ == "__main__":
    main()
