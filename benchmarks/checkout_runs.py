"""Train small guarded models with fixed seeds and print all that they did, to compare checkouts.

The program runs in a process of its own, with the ``src`` of one checkout first on PYTHONPATH. It uses public
names of halfguard only, so the same program runs on every checkout. Standard output has one JSON object per
line: the header, then one object per run. The files of a run (journal, incidents, snapshots) are left in
``FOLDER/RUN``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import ExponentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import halfguard as hg

Batch = dict[str, Tensor]
Values = dict[str, str]

VOCABULARY, CONTEXT, CLASSES = 64, 16, 4
LONG_LIST = 16  # longer lists of numbers are compared by digest


# -- models


class Block(nn.Module):
    """A pre-norm transformer block. ``gain`` multiplies the hidden layer: 1e6 overflows FP16, not FP32."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor, gain: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) / (width // self.heads) ** 0.5
        attention = torch.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        mixed = (attention @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.drop(self.out(mixed))
        hidden = nn.functional.gelu(self.up(self.norm2(x))) * gain
        return x + self.drop(self.down(hidden))


class GPT(nn.Module):
    """GPT-2 in small: learned positions, causal attention, dropout, output tied to the embedding."""

    mask: Tensor

    def __init__(self, width: int = 32, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.1)
        self.register_buffer("mask", torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1))

    def forward(self, batch: Batch) -> Tensor:
        tokens = batch["inputs"]
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = boosted(block(x, self.mask, batch["gain"]), batch["boost"])
        logits: Tensor = self.head(self.norm(x))
        return logits.flatten(0, 1)


class ConvNet(nn.Module):
    """Two convolutions with BatchNorm, whose buffers a bad batch would spoil."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, batch: Batch) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(batch["inputs"] * batch["gain"])))
        x = torch.relu(self.norm2(self.conv2(boosted(x, batch["boost"]))))
        return self.head(x.mean((2, 3)))


def boosted(x: Tensor, factor: Tensor) -> Tensor:
    """Return the value of ``x``, with its gradient multiplied by ``factor``."""
    return x + (factor - 1.0) * (x - x.detach())


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    loss = nn.functional.cross_entropy(model(batch), batch["labels"])
    return loss * batch["loss_factor"]


# -- data and faults


def gpt_batch(generator: torch.Generator) -> Batch:
    """Sequences in which most tokens follow from the one before; the rest keeps the loss above zero."""
    start = torch.randint(VOCABULARY, (4, 1), generator=generator)
    sequence = (start + 5 * torch.arange(CONTEXT + 1)) % VOCABULARY
    noise = torch.randint(VOCABULARY, sequence.shape, generator=generator)
    sequence = torch.where(torch.rand(sequence.shape, generator=generator) < 0.3, noise, sequence)
    return {"inputs": sequence[:, :-1].contiguous(), "labels": sequence[:, 1:].flatten()}


def conv_batch(generator: torch.Generator) -> Batch:
    """Noise, brighter in one quadrant: the class."""
    images = torch.randn(8, 1, 4, 4, generator=generator)
    labels = torch.randint(CLASSES, (8,), generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = 2 * (label // 2), 2 * (label % 2)
        image[0, top : top + 2, left : left + 2] += 1.0
    return {"inputs": images, "labels": labels}


def plant(batch: Batch, fault: str, step: int) -> None:
    """Put a fault into a batch; a step that is repeated with this batch meets it again."""
    # Twenty sizes from 1.02 to 45, in mixed order: some are close to the limit of a spike.
    spike = 1.0 + 0.02 * 1.5 ** (step // 10 * 7 % 20)
    if fault == "nan" and batch["inputs"].is_floating_point():
        batch["inputs"][0] = torch.nan
    elif fault == "nan":
        batch["loss_factor"].fill_(torch.nan)
    elif fault == "no labels":
        batch["labels"].fill_(-100)
    elif fault == "forward overflow":
        batch["gain"].fill_(1e6)
    elif fault == "gradient overflow":
        batch["boost"].fill_(1e6)
    elif fault == "loss spike":
        batch["loss_factor"].fill_(spike)
    elif fault == "gradient spike":
        batch["boost"].fill_(spike)
    elif fault:
        raise ValueError(f"unknown fault: {fault}")


@dataclass(frozen=True)
class Faults:
    """Faults by step: ``at`` gives the position in every ``period`` steps."""

    period: int = 10
    at: Mapping[int, str] = field(default_factory=dict)

    def of(self, step: int) -> str:
        return self.at.get(step % self.period, "")


# -- runs


@dataclass(frozen=True)
class Setup:
    """A model with its data and optimizer, and the number of micro-batches in a step."""

    model: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    optimizer: Callable[[Any], Optimizer]
    accumulate: int | None = None  # None: as the configuration says
    average: bool = False


SETUPS = {
    "gpt": Setup(GPT, gpt_batch, lambda p: AdamW(p, lr=3e-3, foreach=True), average=True),
    "conv": Setup(ConvNet, conv_batch, lambda p: SGD(p, lr=0.05, momentum=0.9)),
    # A fused optimizer takes the decision on the device, without waiting for the host.
    "accumulate": Setup(ConvNet, conv_batch, lambda p: AdamW(p, lr=1e-3, fused=True), accumulate=4),
}

# The scale grows between two faults, so it also has to fall.
SCALE = {"init": 1024.0, "growth_interval": 4}
OVERFLOWS = Faults(at={4: "forward overflow", 8: "gradient overflow"})
BAD_BATCHES = Faults(at={3: "nan", 7: "no labels"})
TWO_BAD_STEPS = Faults(period=20, at={18: "nan", 19: "no labels"})


def recovery(store: str) -> dict[str, Any]:
    """Five rollbacks, then the four remedies, then a halt: the faults of 200 steps need all of them."""
    rules = {"every": 5, "max_rollbacks": 5}
    return {"skip": {"max_consecutive": 2}, "recovery": rules | {"store": store}}


CLIP = {"clip": {"max_norm": 0.1}}  # less than the usual norms here
INCIDENTS = {"incidents": {"keep": 20}}

# By name: what goes over the preset, and the faults.
CONDITIONS: dict[str, tuple[dict[str, Any], Faults]] = {
    "healthy": ({}, Faults()),
    "nan": ({}, BAD_BATCHES),
    "overflow-skip": ({"scale": SCALE, "skip": {"on_nonfinite": "skip"}}, OVERFLOWS),
    "overflow-retry": ({"scale": SCALE, "skip": {"on_nonfinite": "retry_fp32"}} | CLIP, OVERFLOWS),
    "rollback-memory": (recovery("memory"), TWO_BAD_STEPS),
    "rollback-disk": (recovery("disk") | CLIP, TWO_BAD_STEPS),
    "spike": (
        {"spike": {"sigma": 6.0}, "scale": {"init": 16.0}},
        Faults(at={5: "gradient spike", 9: "loss spike"}),
    ),
}


@dataclass(frozen=True)
class Run:
    """One training run; ``form`` says how the guard is called."""

    name: str
    setup: Setup
    config: Mapping[str, Any]
    faults: Faults
    form: str = "step"


def all_runs() -> Iterator[Run]:
    for name, setup in SETUPS.items():
        for preset in ("default", "fp16_safe"):
            for condition, (changes, faults) in CONDITIONS.items():
                config = hg.GuardConfig.load(preset).model_dump() | INCIDENTS | changes
                if setup.accumulate is not None:
                    config["accumulate"] = setup.accumulate
                yield Run(f"{name}/{preset}/{condition}", setup, config, faults)
    gpt = SETUPS["gpt"]
    for precision in ("fp32", "bf16-mixed", "fp16-weights"):
        yield Run(f"gpt/{precision}", gpt, CLIP | {"precision": precision}, BAD_BATCHES)
    own_loop = CLIP | {"accumulate": 2}
    yield Run("conv/own-loop", SETUPS["conv"], own_loop, BAD_BATCHES, form="own loop")
    yield Run("conv/resume", SETUPS["conv"], recovery("disk"), TWO_BAD_STEPS, form="resume")
    stop = {"skip": {"on_nonfinite": "raise"}}
    yield Run("conv/halt", SETUPS["conv"], stop, TWO_BAD_STEPS)
    # Last: emulation changes torch.autocast for the rest of the process.
    emulated = CLIP | {"scale": SCALE}
    yield Run("gpt/emulated-autocast", gpt, emulated, OVERFLOWS, form="emulated autocast")


class Session:
    """A run under way: the guarded model, and what has been recorded so far."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run, self.folder = run, folder
        self.step = 0
        self.outcomes: Values = {}
        self.build()

    def build(self) -> None:
        random.seed(0)
        np.random.seed(0)  # the guard keeps the state of this generator, too
        torch.manual_seed(0)
        setup, config = self.run.setup, hg.GuardConfig.load(self.run.config)
        half = config.precision == "fp16-weights"
        model = setup.model()
        self.model = model.half() if half else model
        optimizer = setup.optimizer(self.model.parameters())
        self.optimizer = hg.MasterWeights(optimizer) if half else optimizer
        self.scheduler = ExponentialLR(self.optimizer, 0.999)
        self.average = None
        if setup.average and not half:
            self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.guard = hg.Guard(
            self.model,
            self.optimizer,
            config,
            scheduler=self.scheduler,
            ema=self.average,
            run_dir=self.folder,
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute the loss. What it would record here, a guard takes back with the step."""
        emulated = self.run.form == "emulated autocast"
        with hg.emulate_autocast() if emulated else contextlib.nullcontext():
            return loss_of(model, batch)

    def take_step(self) -> None:
        """Run all micro-batches of one step. The last one has the fault."""
        count = self.guard.config.accumulate
        for index in range(count):
            batch = self.batch(self.step * count + index)
            if index == count - 1:
                plant(batch, self.run.faults.of(self.step), self.step)
            about = f"sample {self.step}.{index}"
            if self.run.form != "own loop":
                outcome = self.guard.step(self.loss, batch, about=about)
            else:
                with self.guard.autocast():
                    loss = self.loss(self.model, batch)
                self.guard.backward(loss, batch=batch, about=about)
                if index < count - 1:
                    continue
                outcome = self.guard.update()
            self.outcomes[f"step {self.step}.{index}"] = described(outcome)
        self.step += 1

    def batch(self, index: int) -> Batch:
        batch = self.run.setup.batch(torch.Generator().manual_seed(index))
        return batch | {name: torch.ones(()) for name in ("gain", "boost", "loss_factor")}

    def resume(self) -> None:
        """Stop, and go on from the last good snapshot with new objects."""
        self.guard.close()
        self.build()
        self.outcomes[f"step {self.step}, resumed"] = str(self.guard.resume())

    def values(self) -> Values:
        """Return all that is compared beside the files, by kind and name."""
        buffers = {name for name, _ in self.model.named_buffers()}
        state = self.model.state_dict()
        kinds: dict[str, Any] = {
            "outcome": self.outcomes,
            "weights": {name: value for name, value in state.items() if name not in buffers},
            "buffers": {name: value for name, value in state.items() if name in buffers},
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "average": {} if self.average is None else self.average.state_dict(),
            "guard": self.guard.state_dict(),
        }
        return {
            f"{kind}, {name}": value
            for kind, part in kinds.items()
            for name, value in flat(part).items()
        }


def described(outcome: hg.StepOutcome) -> str:
    numbers = (value.hex() for value in (outcome.loss, outcome.grad_norm, outcome.scale))
    loss, grad_norm, scale = numbers
    return (
        f"action={outcome.action} cause={outcome.cause} applied={outcome.applied} loss={loss} "
        f"grad_norm={grad_norm} scale={scale} culprits={','.join(outcome.culprits)}"
    )


def flat(state: Any, path: str = "") -> Values:
    """Return a nested state as one text per leaf, by its path; tensors by the digest of their bytes."""
    if isinstance(state, Mapping):
        items = [(str(key), value) for key, value in state.items()]
    elif isinstance(state, list | tuple) and len(state) <= LONG_LIST:
        items = [(str(index), value) for index, value in enumerate(state)]
    else:
        return {path: leaf(state)}
    found: Values = {}
    for key, value in items:
        found |= flat(value, f"{path}.{key}" if path else key)
    return found


def leaf(value: Any) -> str:
    if isinstance(value, Tensor):
        data = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{value.dtype}{list(value.shape)} sha256:{hashlib.sha256(data).hexdigest()}"
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, list | tuple):
        return f"{len(value)} values sha256:{hashlib.sha256(repr(value).encode()).hexdigest()}"
    return value if isinstance(value, str) else repr(value)


def train(run: Run, steps: int, folder: Path) -> dict[str, Any]:
    """Train for ``steps`` steps, or until the guard halts."""
    session = Session(run, folder)
    while session.step < steps:
        if session.step == steps // 2:
            session.guard.end_epoch()
            if run.form == "resume":
                session.resume()
        try:
            session.take_step()
        except Exception as error:
            if type(error).__name__ != "TrainingHaltedError":
                raise
            session.outcomes[f"step {session.step}"] = type(error).__name__
            session.step += 1
            break
    values = session.values()
    summary = session.guard.close()
    counts = {
        "steps": session.step,
        "applied": summary.applied,
        "retried": summary.retried,
        "skipped": sum(summary.skipped.values()),
        "rollbacks": summary.rollbacks,
    }
    return {"run": run.name, "counts": counts, "values": values}


def check_origin(source: Path) -> None:
    """Exit unless halfguard was imported from ``source``: an installed one would be compared with itself."""
    files = [
        Path(module.__file__).resolve()
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "halfguard" and module.__file__ is not None
    ]
    strange = [str(file) for file in files if not file.is_relative_to(source.resolve())]
    if strange or not files:
        sys.exit(
            f"halfguard was imported from {strange[0] if strange else 'nowhere'}, not {source}."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="src folder of the checkout")
    parser.add_argument("--folder", type=Path, required=True, help="receives the files of the runs")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--runs", default="*", help="pattern of the names of runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = [run for run in all_runs() if fnmatch(run.name, arguments.runs)]
    check_origin(arguments.source)
    print(json.dumps({"halfguard": str(hg.__file__), "runs": len(runs)}), flush=True)
    for run in runs:
        result = train(run, arguments.steps, arguments.folder / run.name)
        print(json.dumps(result), flush=True)
    check_origin(arguments.source)  # also the modules that were imported on the way


if __name__ == "__main__":
    main()
