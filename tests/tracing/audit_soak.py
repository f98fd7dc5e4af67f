"""All planted faults and all healthy models: ``scripts/soak audit [SEEDS]``."""

from __future__ import annotations

import sys

from benchmarks.models.swallowed import HEALTHY, PLANTED
from benchmarks.models.swallowed.audits import alarms, missed

from halfguard.precision_names import Precision


def main(seeds: int = 1) -> int:
    wrong = 0
    for held_out in (False, True):
        chosen = [planted for planted in PLANTED if planted.held_out is held_out]
        answers = [missed(planted, seed) for planted in chosen for seed in range(seeds)]
        bad = [answer for answer in answers if answer]
        wrong += len(bad)
        print(
            f"{'held out' if held_out else 'tuned'}: {len(answers) - len(bad)} of {len(answers)} found"
        )
        print("\n".join(bad), end="\n" if bad else "")
    audits, worst = 0, 0.0
    for name in HEALTHY:
        for precision in (Precision.FP16_MIXED, Precision.BF16_MIXED):
            for trained in (False, True):
                text, error = alarms(name, precision, trained=trained)
                audits, worst = audits + 1, max(worst, error)
                if text:
                    wrong += 1
                    print(f"{name}, {precision}, {'trained' if trained else 'fresh'}: {text}")
    print(f"healthy: {len(HEALTHY)} models, {audits} audits, largest error {worst:.2g}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
