"""Compare a guarded step with the bare loop, and with the check that people paste into theirs.

Copies of a model take the same steps in turn: bare (autocast, ``torch.amp.GradScaler``,
``clip_grad_norm_``), bare a second time (its difference from the first is noise), guarded, and bare with a
check of every gradient for NaN and infinity. Targets for the medians: at most 1.02 for a model of 30M
parameters, at most 1.05 for 2,000 tiny tensors. Twenty tiny tensors show the fixed cost of a step.

Each step is measured in wall time and in processor time of this process. On an idle machine they agree; on a
busy one the second still shows what a step costs. One thread, so that threads do not wait for each other.

``python -m benchmarks.timings.guard [gpt2|tiny|fixed|all] [--rounds N] [--threads N]``
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from tests.support.counting import OpCounter
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW, Optimizer

from benchmarks.table import print_table
from halfguard.guard.guard import Guard
from halfguard.workload.timing import time_interleaved

MAX_NORM = 1.0
MODELS = ["gpt2", "tiny", "fixed"]
OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "SGD": lambda model: SGD(model.parameters(), lr=1e-4, momentum=0.9, foreach=True),
    "AdamW foreach": lambda model: AdamW(model.parameters(), lr=1e-4, foreach=True),
    "AdamW fused": lambda model: AdamW(model.parameters(), lr=1e-4, fused=True),
}

Loss = Callable[[nn.Module, Any], Tensor]
Step = Callable[[], object]


class Block(nn.Module):
    """A pre-norm transformer block, causal."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        widened: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + widened


class GPT2Like(nn.Module):
    """GPT-2's vocabulary and shape at a width of 384 and 6 blocks: 30M parameters, embeddings tied."""

    def __init__(self, vocabulary: int = 50257, width: int = 384, length: int = 256) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 6) for _ in range(6)))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.positions(positions))
        return F.linear(self.norm(x), self.tokens.weight)


class Tiny(nn.Module):
    """Residual layers of 16 by 16: two parameter tensors each, and almost nothing to compute."""

    def __init__(self, tensors: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(tensors // 2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + 1e-3 * layer(x)
        return x


def next_token(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def squares(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[0]).float(), batch[1])


def bare(model: nn.Module, optimizer: Optimizer, loss_fn: Loss, batch: Any) -> Step:
    """The loop of torch's own AMP recipe."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step() -> None:
        with torch.autocast("cpu", torch.float16):
            loss = loss_fn(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def pasted(model: nn.Module, optimizer: Optimizer, loss_fn: Loss, batch: Any) -> Step:
    """The bare step with the check that people paste: the host reads the loss and every gradient."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step() -> None:
        with torch.autocast("cpu", torch.float16):
            loss = loss_fn(model, batch)
        if torch.isnan(loss) or torch.isinf(loss):
            return
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for p in model.parameters():
            if p.grad is not None and (torch.isnan(p.grad).any() or torch.isinf(p.grad).any()):
                break
        else:
            clip_grad_norm_(model.parameters(), MAX_NORM)
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def guarded(
    model: nn.Module, optimizer: Optimizer, loss_fn: Loss, batch: Any, run_dir: str
) -> Step:
    config = {"scale": {"init": 1024.0}, "clip": {"max_norm": MAX_NORM}}
    guard = Guard(model, optimizer, config, run_dir=run_dir)
    return lambda: guard.step(loss_fn, batch)


def contestants(
    model: nn.Module, make: Callable[[nn.Module], Optimizer], loss_fn: Loss, batch: Any, folder: str
) -> dict[str, Step]:
    copies = [copy.deepcopy(model) for _ in range(4)]
    return {
        "bare": bare(copies[0], make(copies[0]), loss_fn, batch),
        "guarded": guarded(copies[1], make(copies[1]), loss_fn, batch, folder),
        "bare again": bare(copies[2], make(copies[2]), loss_fn, batch),
        "pasted check": pasted(copies[3], make(copies[3]), loss_fn, batch),
    }


class Metered:
    """A step that records the processor time of each call."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self.seconds: list[float] = []

    def __call__(self) -> None:
        start = time.process_time()
        self._step()
        self.seconds.append(time.process_time() - start)


def counts(step: Step) -> tuple[int, int]:
    step()  # the first step creates optimizer state and limits
    with OpCounter() as counter:
        step()
    return counter.total, counter.host_syncs


def compare(title: str, model: nn.Module, loss_fn: Loss, batch: Any, rounds: int) -> None:
    size, tensors = sum(p.numel() for p in model.parameters()), len(list(model.parameters()))
    for name, make in OPTIMIZERS.items():
        with tempfile.TemporaryDirectory() as folder:
            steps = contestants(model, make, loss_fn, batch, folder)
            counted = {who: counts(step) for who, step in steps.items()}
            metered = {who: Metered(step) for who, step in steps.items()}
            wall = time_interleaved(metered, rounds=rounds)
        processor = {who: step.seconds[-rounds:] for who, step in metered.items()}
        print(f"\n== {title}: {size:,} parameters in {tensors} tensors, {name}")
        print_table("wall time", wall, against="bare")
        print_table("processor time", processor, against="bare")
        ops, syncs = counted["bare"]
        for who, (more_ops, more_syncs) in counted.items():
            print(f"{who:<16}{more_ops - ops:+6d} operations, {more_syncs - syncs:+5d} host syncs")
    first_step(model, loss_fn, batch, rounds=min(rounds, 15))


def first_step(model: nn.Module, loss_fn: Loss, batch: Any, rounds: int) -> None:
    """Print the processor time of a run's first step, in which the guard looks at all that a step reaches."""
    seconds: dict[str, list[float]] = {"later": [], "first": []}
    for _ in range(rounds):
        run = copy.deepcopy(model)
        guard = Guard(run, AdamW(run.parameters()), {"skip": {"on_nonfinite": "retry_fp32"}})
        step = Metered(partial(guard.step, loss_fn, batch))
        for _ in range(9):
            step()
        seconds["first"].append(step.seconds[0])
        seconds["later"].append(median(step.seconds[5:]))  # a look falls on steps 0, 1, 3 and 6
    print_table("a first step that can be repeated", seconds, against="later")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    # The default must be one of the choices: Python 3.11 compares it as a whole with each of them.
    parser.add_argument("models", nargs="*", choices=[*MODELS, "all"], default="all")
    parser.add_argument("--rounds", type=int, default=None, help="steps of each contestant")
    parser.add_argument("--threads", type=int, default=1)
    return parser


def main() -> None:
    options = make_parser().parse_args()
    models = MODELS if "all" in options.models else options.models
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, FP16 autocast on the CPU")
    if "gpt2" in models:
        tokens = torch.randint(0, 50257, (2, 129))
        compare("GPT-2-like", GPT2Like(), next_token, tokens, options.rounds or 30)
    if "tiny" in models:
        pair = torch.randn(8, 16), torch.randn(8, 16)
        compare("tiny tensors", Tiny(2000), squares, pair, options.rounds or 60)
    if "fixed" in models:
        pair = torch.randn(8, 16), torch.randn(8, 16)
        compare("fixed cost", Tiny(20), squares, pair, options.rounds or 500)


if __name__ == "__main__":
    main()
