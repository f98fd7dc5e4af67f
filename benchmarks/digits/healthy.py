"""Healthy steps: the models of this repository, and tiny transformers, each with random weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from benchmarks.models.swallowed import HEALTHY as LAYERS_AND_LOSSES
from benchmarks.models.zoo.healthy import HEALTHY as MASKS

Job = tuple[nn.Module, Callable[[Any, Any], Any], Any]
_SIZES: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_OLD_SIZES: dict[str, Any] = {
    "vocab_size": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 64,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_PAIR: dict[str, Any] = {
    "vocab_size": 128, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "max_position_embeddings": 64,
}  # fmt: skip
_T5: dict[str, Any] = {
    "vocab_size": 128, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
_PICTURES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 16, "patch_size": 4, "num_labels": 5,
}  # fmt: skip
_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", _OLD_SIZES),
    "llama": ("LlamaForCausalLM", _SIZES),
    "llama, eager": ("LlamaForCausalLM", {**_SIZES, "attn_implementation": "eager"}),
    "mistral": ("MistralForCausalLM", _SIZES),
    "qwen2": ("Qwen2ForCausalLM", _SIZES),
    "qwen3": ("Qwen3ForCausalLM", _SIZES),
    "gemma": ("GemmaForCausalLM", _SIZES),
    "gemma2": ("Gemma2ForCausalLM", _SIZES),
    "phi": ("PhiForCausalLM", _SIZES),
    "gpt-neox": ("GPTNeoXForCausalLM", _SIZES),
    "stablelm": ("StableLmForCausalLM", _SIZES),
    "granite": ("GraniteForCausalLM", _SIZES),
    "mixtral": ("MixtralForCausalLM", {**_SIZES, "num_local_experts": 4}),
    "opt": ("OPTForCausalLM", {**_SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "bloom": (
        "BloomForCausalLM",
        {"vocab_size": 128, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    "bert": ("BertForMaskedLM", _SIZES),
    "roberta": ("RobertaForMaskedLM", _SIZES),
    "electra": ("ElectraForMaskedLM", {**_SIZES, "embedding_size": 32}),
    "bart": ("BartForConditionalGeneration", _PAIR),
    "t5": ("T5ForConditionalGeneration", _T5),
    "vit": ("ViTForImageClassification", _PICTURES),
}


def _own_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = model(**batch).loss
    return loss


def _transformer(name: str) -> Job:
    cls, options = _MODELS[name]
    torch.manual_seed(0)
    model_class = getattr(transformers, cls)
    model = model_class(model_class.config_class(**options))
    model.train()
    if name == "vit":
        return model, _own_loss, {
            "pixel_values": torch.randn(4, 3, 16, 16), "labels": torch.randint(0, 5, (4,))
        }  # fmt: skip
    ids = torch.randint(3, 128, (2, 24))
    return model, _own_loss, {"input_ids": ids, "labels": ids}


def repository_models() -> Iterator[tuple[str, Job]]:
    """Yield the healthy models of this repository."""
    for prefix, makers in (("mask: ", MASKS), ("", LAYERS_AND_LOSSES)):
        for name, make in makers.items():
            torch.manual_seed(0)
            job = make(0)
            yield prefix + name, (job.model, job.loss_fn, job.batch)


def transformers_models() -> Iterator[tuple[str, Job]]:
    """Yield tiny transformers with the losses that they bring."""
    for name in _MODELS:
        yield name, _transformer(name)
