"""The general test of a run without a bad number: does it end worse than the same script in FP32?

Compared are the numbers that it prints last, and its losses. A number that is far from that of FP32 counts
only if other seeds show the same, by more than seeds change it. Patches show which line is to blame: the
first one with which the script ends as in FP32.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from halfguard.investigation.passes import Misused, PassResult
from halfguard.investigation.printed_numbers import is_beyond_noise, last_numbers, worse_numbers
from halfguard.investigation.reference import quarters_of
from halfguard.investigation.script_passes import Investigation, Patched

_SEEDS = (1, 2)  # besides that of the script
_SHORT = 20.0  # seconds of a script that is run with all of them
_MOST = 4  # numbers that are compared
_LEFT = 0.3  # of the distance from FP32, with a patch
_ENDS = ("finished", "exited")
_LOSS = "training loss"


@dataclass(frozen=True)
class Shortfall:
    """Numbers of a run that are worse than in FP32, beyond the noise: each, and that in FP32."""

    numbers: dict[str, tuple[float, float]]
    seeds: int

    def misuse(self) -> Misused:
        """Return it as a fault without a name."""
        ends = "; ".join(f"{name} is {now:.4g} (FP32: {full:.4g})"
                         for name, (now, full) in list(self.numbers.items())[:2])  # fmt: skip
        text = f"The run ends worse than in FP32, with each of {self.seeds} seeds: {ends}."
        return Misused(kind="worse than FP32", code="HG619", sentence=text)

    def left(self, ended: str, full: str) -> str:
        """Return which of the numbers a patched script does not improve; empty if it improves all."""
        known, still = last_numbers(ended), worse_numbers(ended, full)
        for name, (now, right) in self.numbers.items():
            number = known.get(name, now)
            if name in still and not abs(number - right) <= _LEFT * abs(now - right):
                return f"{name} is still {number:.4g} (FP32: {right:.4g})"
        return ""


def ends_of(one: Investigation, name: str) -> str:
    """Return what a run has printed, and the median of its losses in each quarter."""
    rows = (f"{_LOSS} {median(some):.6g}" for some in quarters_of(one.losses(name)))
    return "\n".join((one.printed.get(name, ""), *rows))


def find_shortfall(
    one: Investigation, first: PassResult, reference: PassResult, limits: Patched
) -> Shortfall | None:
    """Run a script that ends worse than in FP32 again with other seeds, in both precisions."""
    if reference.error or reference.event is not None or reference.ended not in _ENDS:
        return None
    if first.ended not in _ENDS:
        return None
    now, full = ends_of(one, "losses"), ends_of(one, "fp32")
    apart = worse_numbers(now, full)
    if reference.backward != first.backward:  # quarters of other lengths
        apart.pop(_LOSS, None)
    seeds = _SEEDS if first.effort <= _SHORT else _SEEDS[:1]
    ends = {name: ([pair[0]], [pair[1]]) for name, pair in list(apart.items())[:_MOST]}
    for seed in seeds if apart else ():
        for in_fp32 in (False, True):
            doing = f"running the script{' in FP32' * in_fp32} with another seed"
            run = one.run("sense", doing, trial=limits, in_fp32=in_fp32, seed=seed)
            if run.ended not in _ENDS or run.error:
                return None
            known = last_numbers(ends_of(one, one.name_of(in_fp32=in_fp32, seed=seed)))
            for name, pair in ends.items():
                pair[in_fp32].append(known.get(name, float("nan")))
        ends = {name: pair for name, pair in ends.items() if is_beyond_noise(name, *pair)}
        if not ends:
            return None
    return Shortfall({name: apart[name] for name in ends}, len(seeds) + 1) if ends else None
