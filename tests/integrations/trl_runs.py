"""Small runs of TRL's trainers on a language model of two layers, with FP16 really running on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from halfguard.integrations.transformers import GuardMixin
from tests.integrations.transformers_runs import INIT_SCALE, HalfOnCpu, Rates
from tests.support import quiet

WORDS = ["<pad>", "<eos>", "<unk>", "BAD", *(f"w{number}" for number in range(28))]
BAD = WORDS.index("BAD")


class StockSft(HalfOnCpu, SFTTrainer):
    pass


class StockDpo(HalfOnCpu, DPOTrainer):
    pass


class StockGrpo(HalfOnCpu, GRPOTrainer):
    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return GRPOTrainer._get_train_sampler(self, dataset)  # prompts are repeated by it

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        # The same words for the same prompts, whatever was generated before.
        torch.manual_seed(sum(map(ord, "".join(row["prompt"] for row in inputs))))
        return super()._generate_and_score_completions(inputs)


class GuardedSft(GuardMixin, StockSft):
    pass


class GuardedDpo(GuardMixin, StockDpo):
    pass


class GuardedGrpo(GuardMixin, StockGrpo):
    pass


def tokenizer() -> PreTrainedTokenizerFast:
    model = WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>")
    words = Tokenizer(model)
    words.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )


def language_model(overflow: bool = False) -> Any:
    """Return a model in which the word BAD gives NaN; with ``overflow`` every layer is infinite in half."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    model: Any = LlamaForCausalLM(config)
    model.dtypes = set()

    def poison(module: nn.Module, given: Any, output: Tensor) -> Tensor:
        if (
            torch.is_grad_enabled() and (given[0] == BAD).any()
        ):  # not while completions are generated
            return output * torch.nan
        return output

    def enlarge(module: nn.Module, given: Any, output: Tensor) -> Tensor:
        model.dtypes.add(output.dtype)
        # Completions are generated without gradients, and so is the first pass of a checkpointed block.
        if overflow and (torch.is_grad_enabled() or model.is_gradient_checkpointing):
            return output * 2.0**30 / 2.0**30
        return output

    model.model.embed_tokens.register_forward_hook(poison)
    model.model.layers[0].mlp.down_proj.register_forward_hook(enlarge)
    return model


def sentence(seed: int, words: int = 6, bad: bool = False) -> str:
    drawn = torch.randint(4, len(WORDS), (words,), generator=torch.Generator().manual_seed(seed))
    return " ".join([*(["BAD"] if bad else []), *(WORDS[index] for index in drawn.tolist())])


def rows(kind: str, count: int, bad: int | None = None) -> list[dict[str, str]]:
    """Return one row for each micro-batch; that of ``bad`` makes it NaN."""
    if kind == "sft":
        return [{"text": sentence(index, bad=index == bad)} for index in range(count)]
    prompts = [sentence(index, bad=index == bad) for index in range(count)]
    if kind == "grpo":
        return [{"prompt": prompt} for prompt in prompts]
    return [
        {"prompt": prompt, "chosen": sentence(100 + index), "rejected": sentence(200 + index)}
        for index, prompt in enumerate(prompts)
    ]


def alternate(completions: list[Any], **_: Any) -> list[float]:
    """Reward every second completion, whatever it says: the same in half and in FP32."""
    return [float(index % 2) for index in range(len(completions))]


KINDS: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "sft": (StockSft, GuardedSft, SFTConfig, {"max_length": 16}),
    "dpo": (StockDpo, GuardedDpo, DPOConfig, {"max_length": 24}),
    "grpo": (
        StockGrpo,
        GuardedGrpo,
        GRPOConfig,
        {
            "num_generations": 2,
            "max_completion_length": 4,
            "shuffle_dataset": False,
            "generation_kwargs": {"suppress_tokens": [BAD]},
            "beta": 0.0,
        },
    ),
}


def make(
    kind: str,
    folder: Path,
    data: list[dict[str, str]],
    *,
    guard: dict[str, Any] | None = None,
    overflow: bool = False,
    accumulate: int = 1,
    clip: float = 0.5,
    wrap: Callable[[Any], Any] = lambda model: model,
    **changed: Any,
) -> Any:
    """Return a trainer of TRL with a fresh model; guarded if there is a configuration."""
    stock, guarded, config, own = KINDS[kind]
    batch = 2 if kind == "grpo" else 1
    args = config(
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulate,
        max_grad_norm=clip,
        num_train_epochs=1,
        learning_rate=0.01,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=3,
        logging_steps=1,
        **quiet.transformers(folder)
        | {"fp16": True, "bf16": False, "gradient_checkpointing": False}
        | own
        | changed,
    )
    given: dict[str, Any] = {
        "model": wrap(language_model(overflow)),
        "args": args,
        "train_dataset": Dataset.from_list(data),
        "processing_class": tokenizer(),
        "callbacks": [Rates()],
    }
    if kind == "grpo":
        given["reward_funcs"] = alternate
    if kind == "dpo":
        given["ref_model"] = language_model()
    if guard is None:
        return stock(**given)
    return guarded(**given, guard={"scale": {"init": INIT_SCALE}} | guard)
