"""The table that every benchmark prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from halfguard.workload.timing import medians, ratios


def print_table(title: str, seconds: Mapping[str, Sequence[float]], *, against: str) -> None:
    """Print median milliseconds and the ratio with its quartiles, one contestant per row."""
    print(f"\n{title} (median of {len(seconds[against])} interleaved rounds)")
    print(f"{'':<34}{'ms':>10}   ratio [quartiles]")
    middle = medians(seconds)
    for name, ratio in ratios(seconds, against=against).items():
        spread = f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
        print(f"{name:<34}{middle[name] * 1e3:>10.2f}   {spread}")
