"""Rollouts of a small policy, with and without a planted cause of mismatch.

The engine of the rollout decodes token by token with a KV cache, in half weights; the trainer scores whole
sequences. So both round differently, as two libraries do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from halfguard.records.mismatch import CauseKind, MismatchReport
from halfguard.rollouts import Rollout, mismatch

SEQUENCES, PROMPT, COMPLETION = 8, 12, 24
VOCABULARY = 256


def policy(
    seed: int,
    width: int = 64,
    layers: int = 2,
    *,
    vocabulary: int = VOCABULARY,
    dropout: float = 0.0,
) -> Any:
    """Return a policy whose distributions are as sharp as those of a trained one."""
    torch.manual_seed(seed)
    library: Any = transformers
    config = library.Qwen2Config(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=3 * width,
        num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        initializer_range=0.12, attention_dropout=dropout, tie_word_embeddings=False,
    )  # fmt: skip
    return library.Qwen2ForCausalLM(config).eval()


@dataclass
class Engine:
    """What draws the tokens, and how."""

    model: Any
    dtype: torch.dtype = torch.bfloat16
    temperature: float = 1.0
    top_p: float = 1.0
    sees: Callable[[Tensor], Tensor] = field(default=lambda ids: ids)

    @torch.no_grad()
    def roll(
        self, seed: int, sequences: int = SEQUENCES, completion: int = COMPLETION
    ) -> list[Rollout]:
        """Return completions of random prompts, with the log-probabilities of their tokens."""
        generator = torch.Generator().manual_seed(seed)
        prompts = torch.randint(3, VOCABULARY, (sequences, PROMPT), generator=generator)
        prompts[:, 0] = 1
        model = copy.deepcopy(self.model).to(self.dtype)
        out = model(input_ids=self.sees(prompts), use_cache=True)
        tokens, logprobs = [], []
        for _ in range(completion):
            distribution = self._distribution(out.logits[:, -1].float())
            drawn = torch.multinomial(distribution.exp(), 1, generator=generator)
            tokens.append(drawn)
            logprobs.append(distribution.gather(-1, drawn))
            out = model(input_ids=drawn, past_key_values=out.past_key_values, use_cache=True)
        ids, recorded = torch.cat(tokens, 1).tolist(), torch.cat(logprobs, 1).tolist()
        return [
            Rollout(tuple(prompt), tuple(row), tuple(logp))
            for prompt, row, logp in zip(prompts.tolist(), ids, recorded, strict=True)
        ]

    def _distribution(self, logits: Tensor) -> Tensor:
        logp = (logits / self.temperature).log_softmax(-1)
        if self.top_p == 1.0:
            return logp
        ordered, order = logp.sort(-1, descending=True)
        beyond = ordered.exp().cumsum(-1) - ordered.exp() >= self.top_p
        cut = ordered.masked_fill(beyond, -float("inf")).log_softmax(-1)
        return torch.full_like(logp, -float("inf")).scatter(-1, order, cut)


def healthy(seed: int, dtype: str) -> MismatchReport:
    """Return the report of a pair without a fault."""
    model = policy(seed)
    rows = Engine(model, getattr(torch, dtype)).roll(seed)
    return mismatch(model, rows, rollout_dtype=dtype, trainer_dtype=dtype, lines=False)


def healthy_at_temperature(seed: int) -> MismatchReport:
    model = policy(seed)
    rows = Engine(model, temperature=0.7).roll(seed)
    return mismatch(model, rows, previous=policy(seed), temperature=0.7, lines=False)


def healthy_adapter(seed: int) -> MismatchReport:
    model = adapted(seed)
    return mismatch(model, Engine(model).roll(seed), lines=False)


def _temperature(seed: int) -> MismatchReport:
    model = policy(seed)
    return mismatch(model, Engine(model, temperature=0.85).roll(seed), lines=False)


def _truncated(seed: int) -> MismatchReport:
    model = policy(seed)
    return mismatch(model, Engine(model, top_p=0.9).roll(seed), lines=False)


def _shifted(seed: int) -> MismatchReport:
    model = policy(seed)
    rows = Engine(model).roll(seed)
    late = [Rollout(row.prompt, row.completion, (*row.logprobs[1:], -1.0)) for row in rows]
    return mismatch(model, late, lines=False)


def _first_token(seed: int) -> MismatchReport:
    model = policy(seed)
    return mismatch(model, Engine(model, sees=lambda ids: ids[:, 1:]).roll(seed), lines=False)


def _stale(seed: int) -> MismatchReport:
    model, old = policy(seed), policy(seed)
    torch.manual_seed(seed + 100)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.03 * weight.std() * torch.randn_like(weight) if weight.dim() > 1 else 0.0)
    return mismatch(model, Engine(old).roll(seed), previous=old, lines=False)


def adapted(seed: int) -> Any:
    """Return a policy with a LoRA adapter that was trained."""
    import peft

    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"])
    model = peft.get_peft_model(policy(seed), config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.05)
    return model.eval()


def _adapter(seed: int) -> MismatchReport:
    model = adapted(seed)
    return mismatch(model, Engine(policy(seed)).roll(seed), lines=False)


def _dtype(seed: int) -> MismatchReport:
    model = policy(seed)
    rows = Engine(model, torch.bfloat16).roll(seed)
    return mismatch(model, rows, rollout_dtype="float16", trainer_dtype="float16", lines=False)


def _dropout(seed: int) -> MismatchReport:
    model = policy(seed, dropout=0.1)
    rows = Engine(model).roll(seed)
    model.train()
    torch.manual_seed(seed)
    scored = [_score(model, row) for row in rows]
    model.eval()
    both = [
        Rollout(row.prompt, row.completion, row.logprobs, tuple(own))
        for row, own in zip(rows, scored, strict=True)
    ]
    return mismatch(model, both, lines=False)


@torch.no_grad()
def _score(model: nn.Module, row: Rollout) -> list[float]:
    ids = torch.tensor([(*row.prompt, *row.completion)])
    logp = model(input_ids=ids).logits[0, len(row.prompt) - 1 : -1].log_softmax(-1)
    found: list[float] = logp.gather(-1, torch.tensor(row.completion)[:, None])[:, 0].tolist()
    return found


PLANTED: dict[str, tuple[CauseKind, Callable[[int], MismatchReport]]] = {
    "temperature 0.85, declared 1": ("temperature", _temperature),
    "top_p 0.9, trainer has all": ("truncated sampling", _truncated),
    "log-probabilities shifted by a token": ("shifted tokens", _shifted),
    "prompt without BOS": ("other prompt", _first_token),
    "stale weights": ("other weights", _stale),
    "adapter not merged": ("adapter", _adapter),
    "BF16 where FP16 was declared": ("other dtype", _dtype),
    "dropout in the trainer": ("dropout", _dropout),
}
HEALTHY: dict[str, Callable[[int], MismatchReport]] = {
    "bfloat16": lambda seed: healthy(seed, "bfloat16"),
    "float16": lambda seed: healthy(seed, "float16"),
    "temperature 0.7, declared": healthy_at_temperature,
    "adapter": healthy_adapter,
}


def large() -> tuple[Any, MismatchReport]:
    """Return a policy of 10M weights with the report of its rollouts in BF16."""
    model = policy(0, 256, 8, vocabulary=8192)
    rows = Engine(model).roll(0, completion=64)
    return model, mismatch(model, rows, lines=False)
