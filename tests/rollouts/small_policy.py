"""A causal model of one layer, and rollouts whose log-probabilities some engine has computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.rollouts import Rollout
from halfguard.rollouts.scoring import Scorer, Variant

TOKENS = 40


class Policy(nn.Module):
    """Predicts from the mean of all tokens so far, and from the last one."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(TOKENS, 32), nn.Linear(64, 64)
        self.drop, self.head = nn.Dropout(dropout), nn.Linear(64, TOKENS, bias=False)
        nn.init.normal_(self.head.weight, 0, 0.4)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        count = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        so_far = (x.float().cumsum(1) / count).to(x.dtype)
        out: Tensor = self.head(self.drop(torch.tanh(self.mix(torch.cat([x, so_far], -1)))))
        return out

    def get_output_embeddings(self) -> nn.Linear:
        return self.head

    def set_output_embeddings(self, head: nn.Linear) -> None:
        self.head = head


def rollouts(model: nn.Module, **engine: Any) -> list[Rollout]:
    """Return random completions, with the log-probabilities of an engine."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for _ in range(6):
        prompt, completion = (
            torch.randint(1, TOKENS, (count,), generator=generator).tolist() for count in (5, 24)
        )
        rows.append(Rollout((1, *prompt), tuple(completion), ()))
    return recorded(model, rows, **engine)


def recorded(
    model: nn.Module,
    rows: list[Rollout],
    *,
    dtype: torch.dtype = torch.bfloat16,
    temperature: float = 1.0,
    sees: Any = None,
) -> list[Rollout]:
    scorer = Scorer(model, rows, temperature)
    found = (scorer if sees is None else scorer.given(sees)).score(Variant(dtype, chunk=1))
    parts = torch.split(found, [len(row.completion) for row in rows])
    return [replace(r, logprobs=tuple(p.tolist())) for r, p in zip(rows, parts, strict=True)]
