"""Small logs in the form of Lightning's CSVLogger, for tests of everything behind the readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

BASE = (1.0, 1.1, 0.9, 1.05, 0.98)  # of five seeds


def write_csv(
    folder: Path,
    values: Sequence[float],
    *,
    hparams: Mapping[str, object] | None = None,
    metric: str = "val_loss",
    every: int = 10,
) -> None:
    """Log ``values`` of one metric at the steps 10, 20, ..."""
    folder.mkdir(parents=True)
    rows = [f"{epoch},{every * (epoch + 1)},{value!r},0.5" for epoch, value in enumerate(values)]
    text = "\n".join([f"epoch,step,{metric},train_loss", *rows])
    (folder / "metrics.csv").write_text(text + "\n")
    if hparams is not None:
        (folder / "hparams.yaml").write_text(yaml.safe_dump(dict(hparams)))


def write_group(folder: Path, last: Sequence[float]) -> None:
    """Log one run for each value in ``last``, with the seeds 0, 1, 2, ... in hparams.yaml."""
    for seed, value in enumerate(last):
        write_csv(folder / f"version_{seed}", [2 + seed / 8, value], hparams={"seed": seed})


def write_fp32_and_fp16(folder: Path, worse_by: float) -> tuple[str, str]:
    """Log five runs of each; FP16 is worse by this fraction, with some noise. Return the two folders."""
    noise = (0.001, -0.0005, 0.0, 0.0005, -0.001)
    half = [value * (1 + worse_by + more) for value, more in zip(BASE, noise, strict=True)]
    write_group(folder / "fp32", BASE)
    write_group(folder / "fp16", half)
    return str(folder / "fp32"), str(folder / "fp16")
