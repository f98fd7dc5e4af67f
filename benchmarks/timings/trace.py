"""Measure the cost of trace() at every step and at every 100th, beside other tools for the same purpose.

One training step of a GPT-2 of 6M parameters, float32, one thread, in processor seconds, at two batch sizes.
The other tools are torch's anomaly mode and, where transformers is installed, its DebugUnderflowOverflow
(forward pass only).
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.table import print_table, rounds_parser
from halfguard.tracing.tracer import trace
from halfguard.workload.timing import ratios, time_interleaved

EVERY = 100


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.act, self.down = (
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(batch, length, 3, -1, 64).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.down(self.act(self.up(self.ln_2(x))))
        return out


class Gpt(nn.Module):
    def __init__(self, width: int = 256, layers: int = 6, vocabulary: int = 4096) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def step_of(model: nn.Module, ids: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def contestants(ids: Tensor) -> dict[str, Callable[[], object]]:
    bare = step_of(Gpt(), ids)
    runs: dict[str, Callable[[], object]] = {"bare": bare}

    def traced(detail: str, every: int, *, sampled: bool) -> Callable[[], object]:
        model = Gpt()
        step, tracer = step_of(model, ids), trace(model, every=every, detail=detail)  # type: ignore[arg-type]
        tracer.__enter__()
        if not sampled:
            tracer.step()

        def run() -> None:
            step()
            tracer.step()
            if not sampled and (tracer.step_index + 1) % every == 0:
                tracer.step_index += 1  # every measured step is one between samples

        return run

    runs["health, every step"] = traced("health", 1, sampled=True)
    runs["range, the sampled step"] = traced("range", 1, sampled=True)
    runs["range, a step in between"] = traced("range", EVERY, sampled=False)

    anomalous = step_of(Gpt(), ids)

    def anomaly() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autograd.detect_anomaly():
                anomalous()

    runs["torch anomaly mode"] = anomaly
    try:
        from transformers.debug_utils import DebugUnderflowOverflow  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        print("transformers is not installed: its DebugUnderflowOverflow is left out")
    else:
        model = Gpt()
        DebugUnderflowOverflow(model)
        runs["DebugUnderflowOverflow"] = step_of(model, ids)
    return runs


make_parser = partial(rounds_parser, __doc__, 15)


def main() -> None:
    rounds = make_parser().parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parameters = sum(p.numel() for p in Gpt().parameters())
    for batch in (2, 8):
        ids = torch.randint(0, 4096, (batch, 128))
        seconds = time_interleaved(contestants(ids), rounds=rounds, clock=time.process_time)
        print_table(
            f"GPT-2 of {parameters / 1e6:.1f}M, batch {batch} x 128", seconds, against="bare"
        )
        sampled = ratios(seconds, against="bare")["range, the sampled step"].median
        average = 1 + (sampled - 1) / EVERY
        milliseconds = statistics.median(seconds["bare"]) * 1e3
        print(f"range every {EVERY} steps: {average:.4f} of {milliseconds:.0f} ms, since a step in")
        print("between has no hook on the model")


if __name__ == "__main__":
    main()
