"""Log-probabilities of recorded tokens, recomputed in one precision, chunk size and way of decoding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.rollouts.reading import Rollout

CHUNK = 8
_SAMPLED = 128  # tokens whose whole distribution is kept
_DECODED = 512  # tokens that are decoded one by one


@dataclass(frozen=True)
class Variant:
    """One way to compute the same numbers."""

    dtype: torch.dtype = torch.float32
    fp32_head: bool = False
    chunk: int = CHUNK

    @property
    def name(self) -> str:
        head = " with an FP32 head" if self.fp32_head else ""
        alone = " one by one" if self.chunk == 1 else ""
        return f"{str(self.dtype).removeprefix('torch.')}{head}{alone}"


@dataclass(frozen=True)
class Scorer:
    """A model with FP32 weights, and the rollouts that it scores."""

    model: nn.Module
    rows: Sequence[Rollout]
    temperature: float = 1.0

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    @cached_property
    def exact(self) -> Tensor:
        """The log-probabilities in FP32."""
        return self.score(Variant())

    def given(self, prompt: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Scorer:
        """Return a scorer of the same completions after other prompts."""
        return replace(self, rows=[replace(row, prompt=prompt(row.prompt)) for row in self.rows])

    @torch.no_grad()
    def score(self, variant: Variant, *, train: bool = False) -> Tensor:
        """Return the log-probabilities of all completions, one after the other, in float64."""
        model = self.in_precision(variant)
        with _mode(model, train=train):
            parts = [
                _logprobs(rows, self.temperature)
                for chunk in _chunks(self.rows, variant.chunk)
                for rows in _rows_of(model, chunk, self.device)
            ]
        return torch.cat(parts).double().cpu()

    @torch.no_grad()
    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return the log-probabilities of the first completions, token by token with a KV cache."""
        model = self.in_precision(Variant(dtype))
        parts: list[Tensor] = []
        with _mode(model, train=False):
            for row in self.rows:
                parts.append(_logprobs(_decoded(model, row, self.device), self.temperature))
                if sum(map(len, parts)) >= _DECODED:
                    break
        return torch.cat(parts).double().cpu()

    @torch.no_grad()
    def sample_logits(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return indices of some tokens, their ids, and the logits of all tokens there, in FP32."""
        total = sum(len(row.completion) for row in self.rows)
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randperm(total, generator=generator)[:_SAMPLED].sort().values
        found, ids, start = [], [], 0
        with _mode(self.model, train=False):
            for chunk in _chunks(self.rows, CHUNK):
                for tokens, logits in _rows_of(self.model, chunk, self.device):
                    own = chosen[(chosen >= start) & (chosen < start + len(tokens))] - start
                    found.append(logits[own.to(logits.device)].double().cpu())
                    ids.append(tokens.cpu()[own])
                    start += len(tokens)
        return chosen, torch.cat(ids), torch.cat(found)

    def in_precision(self, variant: Variant) -> nn.Module:
        """Return the model with weights of a precision; a copy, unless it is FP32."""
        if variant.dtype is torch.float32:
            return self.model
        made = copy.deepcopy(self.model).to(variant.dtype)
        return _with_fp32_head(made, self.model) if variant.fp32_head else made


def has_head(model: nn.Module) -> bool:
    """Return whether the layer that makes the logits is known."""
    get = getattr(model, "get_output_embeddings", None)
    return get is not None and isinstance(get(), nn.Linear)


def _with_fp32_head(made: Any, model: Any) -> nn.Module:
    """Give a half model a head of its own, in FP32: tied weights stay half where they embed."""
    own = copy.deepcopy(model.get_output_embeddings()).float()
    own.register_forward_pre_hook(lambda _module, args: tuple(one.float() for one in args))
    made.set_output_embeddings(own)
    return made  # type: ignore[no-any-return]


@contextmanager
def _mode(model: nn.Module, *, train: bool) -> Iterator[None]:
    before = [(module, module.training) for module in model.modules()]
    model.train(train)
    try:
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


def _chunks(rows: Sequence[Rollout], size: int) -> Iterator[list[Rollout]]:
    left = iter(rows)
    while chunk := list(islice(left, size)):
        yield chunk


def _rows_of(
    model: nn.Module, chunk: Sequence[Rollout], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the tokens of each completion, and the logits from which they were drawn.

    Sequences are padded at the end: a causal model does not look there.
    """
    length = max(len(row.prompt) + len(row.completion) for row in chunk)
    ids = torch.zeros(len(chunk), length, dtype=torch.long, device=device)
    for at, row in enumerate(chunk):
        whole = torch.tensor((*row.prompt, *row.completion), device=device)
        ids[at, : len(whole)] = whole
    logits = logits_of(model(input_ids=ids))
    for at, row in enumerate(chunk):
        first, count = len(row.prompt), len(row.completion)
        yield ids[at, first : first + count], logits[at, first - 1 : first + count - 1]


def _decoded(model: Any, row: Rollout, device: torch.device) -> tuple[Tensor, Tensor]:
    tokens = torch.tensor(row.completion, device=device)
    out = model(input_ids=torch.tensor([row.prompt], device=device), use_cache=True)
    found = [logits_of(out)[0, -1]]
    for token in tokens[:-1]:
        out = model(
            input_ids=token.reshape(1, 1), past_key_values=out.past_key_values, use_cache=True
        )
        found.append(logits_of(out)[0, -1])
    return tokens, torch.stack(found)


def logits_of(out: Any) -> Tensor:
    """Return the logits in what a model returned."""
    logits: Tensor = getattr(out, "logits", out)
    return logits


def _logprobs(rows: tuple[Tensor, Tensor], temperature: float) -> Tensor:
    tokens, logits = rows
    return logprobs(logits.float(), tokens, temperature)


def logprobs(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Return the log-probabilities of tokens."""
    return (logits / temperature).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
