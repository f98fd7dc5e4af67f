"""A training script that knows nothing of halfguard: its own loop, its own arguments, its own output."""

import json
import random
import struct
import sys
from pathlib import Path


def train(seed: int, half: bool) -> float:
    """Fit y = 3.1 x by gradient descent, rounding the weight to half if asked to."""
    rng = random.Random(seed)
    weight = rng.random()
    for _ in range(200):
        x = rng.random()
        weight -= 0.5 * 2 * x * (weight * x - 3.1 * x)
        if half:
            (weight,) = struct.unpack("e", struct.pack("e", weight))
    return abs(weight - 3.1)


if __name__ == "__main__":
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    print("training with", options)
    if options.get("--crash") == options["--dtype"]:
        sys.exit("RuntimeError: out of range")
    error = train(int(options["--seed"]), options["--dtype"] == "float16")
    told = {"error": error, "note": "text is left out", "done": True}
    Path(options["--save"]).write_text(json.dumps(told), encoding="utf-8")
