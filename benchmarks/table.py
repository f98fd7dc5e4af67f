"""The option and the table that benchmarks share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from halfguard.workload.timing import medians, ratios


def rounds_parser(description: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the number of rounds as its only option."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    return parser


def print_table(title: str, seconds: Mapping[str, Sequence[float]], *, against: str) -> None:
    """Print median milliseconds and the ratio with its quartiles, one contestant per row."""
    print(f"\n{title} (median of {len(seconds[against])} interleaved rounds)")
    print(f"{'':<34}{'ms':>10}   ratio [quartiles]")
    middle = medians(seconds)
    for name, ratio in ratios(seconds, against=against).items():
        spread = f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
        print(f"{name:<34}{middle[name] * 1e3:>10.2f}   {spread}")
