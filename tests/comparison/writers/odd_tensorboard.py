"""Log what SummaryWriter can log besides plain scalars, and print what TensorBoard's own reader finds."""

from __future__ import annotations

import json
import math

import torch
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)
from torch.utils.tensorboard import SummaryWriter

from tests.comparison.writers.training import folder

if __name__ == "__main__":
    writer = SummaryWriter(str(folder()))  # type: ignore[no-untyped-call]
    for step in range(3):
        writer.add_scalar("plain", 1 / (step + 1), step)  # type: ignore[no-untyped-call]
        writer.add_scalar("new", step / 3, step, new_style=True)  # type: ignore[no-untyped-call]
    writer.add_scalar("bad", math.nan, 7)  # type: ignore[no-untyped-call]
    writer.add_scalar("bad", -math.inf, 8)  # type: ignore[no-untyped-call]
    writer.add_scalar("negative step", 1.0, -5)  # type: ignore[no-untyped-call]
    writer.add_scalar("ü/loss", 2.0, 2**40)  # type: ignore[no-untyped-call]
    writer.add_histogram("weights", torch.arange(3.0), 1)  # type: ignore[no-untyped-call]
    writer.add_text("args", '{"data_seed": 1, "learning_rate": 0.1}')  # type: ignore[no-untyped-call]
    writer.add_hparams({"seed": 7, "name": "a"}, {"hparam/x": 1.0})  # type: ignore[no-untyped-call]
    writer.add_scalars("two", {"a": 1.0, "b": 2.0}, 3)  # type: ignore[no-untyped-call]
    writer.close()  # type: ignore[no-untyped-call]
    events = EventAccumulator(str(folder())).Reload()  # type: ignore[no-untyped-call]
    scalars = events.Tags()["scalars"]  # type: ignore[no-untyped-call]
    found = {tag: [(e.step, repr(e.value)) for e in events.Scalars(tag)] for tag in scalars}  # type: ignore[no-untyped-call]
    print("\n" + json.dumps(found))
