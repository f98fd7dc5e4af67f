"""GRPO with a tiny Qwen2 that learns to count: FP16 under the guard, BF16 or FP32.

    python train.py PRECISION [STEPS] [SEED ...]
    torchrun --nproc-per-node 2 train.py PRECISION [STEPS] [SEED ...]    # FSDP2 shards the policy

A copy of the policy in the precision of training generates with a KV cache and returns log-probabilities of
the tokens that it sampled, as vLLM does. The trainer computes those of the same tokens in one pass. The
difference is logged as ``mismatch/...``. There is one line of JSON for each seed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import FullyShardedDataParallelPlugin
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from halfguard.integrations.accelerate import reduce_in_fp32
from halfguard.integrations.transformers import GuardMixin
from halfguard.integrations.trl import MismatchMixin
from halfguard.numerics.agreement import agreement
from halfguard.rollouts import read_rollouts

NUMBERS = 16
PAD, EOS = "<pad>", "<eos>"
WORDS = [*map(str, range(NUMBERS)), PAD, EOS]
LENGTH = 8  # tokens of a completion
EVERY = 20  # steps between two lines, and at the end, steps whose mean reward is reported
CLIP = 0.2  # of GRPO
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
RANKS = int(os.environ.get("WORLD_SIZE", "1"))


class OnCpu:
    """Lets Accelerate lower and shard a model on CPUs, where it would train in FP32 with DDP."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        if state.device.type != "cpu":
            return
        self.accelerator.native_amp = state.mixed_precision != "no"
        if self.args.fsdp_plugin_args is not None:
            plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            if state.mixed_precision != "no":
                plugin.set_mixed_precision(state.mixed_precision)
            state.fsdp_plugin, state.distributed_type = plugin, DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            self.is_fsdp_enabled = True


class Trainer(MismatchMixin, GuardMixin, OnCpu, GRPOTrainer):
    """TRL's GRPO under the guard, with the mismatch logged."""


class Sampler:
    """Generates with a copy of the policy, and returns how likely each token was."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.model = policy().to(dtype).eval()

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, list[list[Any]]]:
        self.model.to(trainer.accelerator.device)
        self._load(trainer.model)
        given = trainer.processing_class(prompts, return_tensors="pt").to(self.model.device)
        out = self.model.generate(
            **given, do_sample=True, top_k=0, eos_token_id=None, max_new_tokens=LENGTH,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        tokens = out.sequences[:, -LENGTH:]
        logprobs = torch.stack(out.logits, 1).float().log_softmax(-1)
        return {
            "prompt_ids": given["input_ids"].tolist(),
            "completion_ids": tokens.tolist(),
            "logprobs": logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).tolist(),
        }

    @torch.no_grad()
    def _load(self, model: torch.nn.Module) -> None:
        """Take the weights of the policy, also those that other ranks have."""
        for own, trained in zip(self.model.parameters(), model.parameters(), strict=True):
            own.copy_(trained.full_tensor() if isinstance(trained, DTensor) else trained)


class Progress(PrinterCallback):
    """Prints the reward and the mismatch."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        if state.is_world_process_zero and "reward" in logs and state.global_step % EVERY == 1:
            told = f"step {state.global_step:3d}: reward {logs['reward']:.3f}"
            told += f", mismatch size {logs['mismatch/size']:.1e}, k3 {logs['mismatch/k3']:.1e}"
            print(told, flush=True)


def counts_on(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Return the share of a completion's numbers that are one more than the number before, modulo 16."""
    rewards = []
    for prompt, completion in zip(prompts, completion_ids, strict=True):
        before = [int(prompt.split()[-1]), *completion[:-1]]
        right = [now == (then + 1) % NUMBERS for then, now in zip(before, completion, strict=True)]
        rewards.append(sum(right) / LENGTH)
    return rewards


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token=PAD))
    words.pre_tokenizer = WhitespaceSplit()
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token=PAD, eos_token=EOS, model_input_names=names
    )


def policy() -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(WORDS), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
        bos_token_id=None, pad_token_id=WORDS.index(PAD), eos_token_id=WORDS.index(EOS),
    )  # fmt: skip
    return Qwen2ForCausalLM(config)


def arguments(precision: str, steps: int, seed: int, folder: str) -> GRPOConfig:
    on_gpu = torch.cuda.is_available()
    sharded = {
        "fsdp": True,
        "fsdp_config": {"transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"]},
        "ddp_backend": None if on_gpu else "gloo",
    }
    return GRPOConfig(
        output_dir=folder, use_cpu=not on_gpu, seed=seed, max_steps=steps,
        fp16=precision == "fp16", bf16=precision == "bf16", gradient_checkpointing=False,
        per_device_train_batch_size=64 // RANKS, num_generations=8, num_iterations=2,
        max_completion_length=LENGTH, temperature=1.0, beta=0.0, epsilon=CLIP,
        learning_rate=2e-3, lr_scheduler_type="constant", logging_steps=1,
        report_to=[], save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        **(sharded if RANKS > 1 else {}),
    )  # fmt: skip


def return_fp32(accelerator: Any) -> None:
    """Let FSDP2 return log-probabilities in FP32. Accelerate's policy rounds what a model returns to half."""
    plugin = accelerator.state.fsdp_plugin
    plugin.mixed_precision_policy = replace(
        plugin.mixed_precision_policy, output_dtype=torch.float32
    )


def train(precision: str, steps: int, seed: int, folder: str) -> Trainer:
    torch.manual_seed(seed)
    prompts = [" ".join(map(str, row)) for row in torch.randint(NUMBERS, (512, 3)).tolist()]
    trainer = Trainer(
        policy(), counts_on, arguments(precision, steps, seed, folder),
        Dataset.from_dict({"prompt": prompts}), processing_class=tokenizer(),
        rollout_func=Sampler(DTYPES[precision]), clip=CLIP, rollouts_dir=folder,
        guard={"skip": {"on_nonfinite": "retry_fp32"}, "strict": True},
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Progress)
    if RANKS > 1 and precision != "fp32":
        reduce_in_fp32(trainer.accelerator)
        return_fp32(trainer.accelerator)
    trainer.train()
    return trainer


def report(trainer: Trainer, folder: str) -> dict[str, float]:
    """Return the reward of the last steps, and how sampler and trainer agree on all tokens of this rank."""
    last = [row["reward"] for row in trainer.state.log_history[-EVERY - 1 :] if "reward" in row]
    rows = [row for path in Path(folder).glob("*.jsonl") for row in read_rollouts(path)]
    sampled = torch.tensor([row.logprobs for row in rows]).double().flatten()
    scored = torch.tensor([row.trainer for row in rows]).double().flatten()
    found = agreement("", sampled, scored, CLIP)
    counts = trainer.guard.counts
    return {
        "reward": sum(last) / len(last),
        **{name: getattr(found, name) for name in ("size", "k3", "largest", "outside")},
        "off by 1%": agreement("", sampled, scored, 0.01).outside,
        "applied": counts.applied, "retried": counts.retried, "skipped": sum(counts.skipped.values()),
    }  # fmt: skip


def main(precision: str, steps: int = 160, *seeds: int) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for seed in seeds or (0,):
        with tempfile.TemporaryDirectory() as folder:
            trainer = train(precision, steps, seed, folder)
            found = {
                "precision": precision,
                "ranks": RANKS,
                "seed": seed,
                **report(trainer, folder),
            }
        if trainer.accelerator.is_main_process:
            print(json.dumps(found), flush=True)
    PartialState().destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
