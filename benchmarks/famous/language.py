"""Models that read and write text."""

from __future__ import annotations

from functools import partial
from typing import Any

from peft import LoraConfig, get_peft_model
from torch import nn

from benchmarks.famous import data
from benchmarks.famous.fixes import clamp, keep_fp32, put_back, take_out, use_attention
from benchmarks.famous.row import Row, Stretch, matching
from benchmarks.famous.stretching import build, feed_channel, set_channel, with_offset
from halfguard.precision_names import Precision

T5: dict[str, Any] = {"vocab_size": data.VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128}
T5 |= {"num_layers": 4, "num_heads": 4, "dropout_rate": 0.0, "decoder_start_token_id": 0}
BART: dict[str, Any] = {"vocab_size": data.VOCABULARY, "d_model": 64, "dropout": 0.0}
for _side in ("encoder", "decoder"):
    BART |= {f"{_side}_layers": 4, f"{_side}_attention_heads": 4, f"{_side}_ffn_dim": 128}
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128}
SIZES |= {"num_hidden_layers": 4, "num_attention_heads": 4}
DECODER = SIZES | {"vocab_size": data.VOCABULARY, "num_key_value_heads": 2, "head_dim": 16}
DECODER |= {"max_position_embeddings": 64, "pad_token_id": 0, "use_cache": False}
EXPERTS = DECODER | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
LINEAR |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}

WO = "encoder.block.*.layer.1.DenseReluDense.wo"
FC2 = "model.encoder.layers.*.fc2"
ATTENTION = "model.layers.*.self_attn"
LINEAR_ATTENTION = "model.layers.*.linear_attn"
DEBERTA = "deberta.encoder.layer.*.attention.self"
OPT = "model.decoder.layers.*.self_attn"
EXPERTS_0, DOWN_0 = "model.layers.0.mlp.experts", "model.layers.0.mlp.down_proj"
LORA = "base_model.model."
LORA_DOWN = f"{LORA}model.layers.*.mlp.down_proj"
POST_NORMS = "model.layers.*.post_feedforward_layernorm"
BLOCK = "model.layers.*"
NORMS = (f"{BLOCK}.input_layernorm", f"{BLOCK}.post_attention_layernorm", "model.norm")
GEMMA_NORMS = tuple(name.replace("post_attention", "pre_feedforward") for name in NORMS)
LAST_FULL = ["sliding_attention"] * 3 + ["full_attention"]

FP32_SCORES = use_attention("scores_in_fp32")
SCORES = "scores in FP32"
CLAMP = "clamp (here of the product: the sum is FP32 under autocast)"


def gemma3(layers: int) -> nn.Module:
    sizes = DECODER | {"num_hidden_layers": layers, "query_pre_attn_scalar": 16}
    return feed_channel(build("Gemma3ForCausalLM", sizes))


def gemma3_row(name: str, layers: int) -> Row:
    return Row(
        name,
        4,
        "transformers#36831, #36832, #37226",
        partial(gemma3, layers),
        set_channel(POST_NORMS, "weight", 0, 3e4),
        places=(POST_NORMS,),
        norms=GEMMA_NORMS,
        norm_offset=1.0,
        learning_rate=1e-4,
    )


def offset_neox(model: nn.Module) -> None:
    """Add a large number to all scores of GPT-NeoX, whose queries, keys and values are one product."""
    for _, module in matching(model, "gpt_neox.layers.*.attention.query_key_value"):
        heads = module.get_parameter("bias").view(4, 3, 16)
        heads[:, 0, 8], heads[:, 1, 8] = 10.0, 1.2e4  # beyond the rotated quarter


def qwen3_next() -> nn.Module:
    """Return a Qwen3-Next that computes ``exp(A_log)`` in the dtype of the weights, as it first did."""
    types = ["linear_attention"] * 3 + ["full_attention"]
    sizes = EXPERTS | LINEAR | {"layer_types": types, "shared_expert_intermediate_size": 64}
    model = build("Qwen3NextForCausalLM", sizes)
    for _, module in list(matching(model, LINEAR_ATTENTION)):
        put_back(module, "self.A_log.float().exp()", "self.A_log.exp()")
    return model


def deberta() -> nn.Module:
    sizes = {key: value for key, value in DECODER.items() if key != "head_dim"}
    sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes |= {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
    return build("DebertaV2ForMaskedLM", sizes, "eager")


def lora() -> nn.Module:
    """Return adapters over a Qwen2 of two layers."""
    base: Any = feed_channel(build("Qwen2ForCausalLM", DECODER, num_hidden_layers=2), gain=8)
    targets = ["q_proj", "v_proj"]
    return get_peft_model(
        base, LoraConfig(r=4, target_modules=targets, modules_to_save=["lm_head"])
    )


ROWS = [
    Row(
        "t5",
        1,
        "transformers#5651, #9487, #20683",
        partial(build, "T5ForConditionalGeneration", T5),
        Stretch(WO, ("wi",)),
        keep_fp32(WO),
        "`wo` in FP32",
    ),
    Row(
        "mt5",
        1,
        "transformers#21281",
        partial(build, "MT5ForConditionalGeneration", T5, feed_forward_proj="gated-gelu"),
        Stretch(WO, ("wi_0", "wi_1")),
        keep_fp32(WO),
        "`wo` in FP32",
    ),
    Row(
        "longt5",
        2,
        "transformers#19229",
        partial(build, "LongT5ForConditionalGeneration", T5, "eager", local_radius=7),
        Stretch(WO, ("wi",)),
        clamp(WO),
        CLAMP,
    ),
    Row(
        "pegasus",
        3,
        "transformers#12225, #9343",
        partial(build, "PegasusForConditionalGeneration", BART),
        Stretch(FC2, ("fc1",)),
        clamp(FC2),
        CLAMP,
        note="the published sum of 1.3e5 is FP16 only with FP16 weights; here the product overflows",
    ),
    Row(
        "bart",
        3,
        "transformers#9343",
        partial(build, "BartForConditionalGeneration", BART),
        Stretch(FC2, ("fc1",)),
        clamp(FC2),
        CLAMP,
    ),
    gemma3_row("gemma3", 4),
    gemma3_row("gemma3-26", 26),
    Row(
        "gemma4-text",
        7,
        "unsloth",
        partial(
            build,
            "Gemma4ForCausalLM",
            DECODER,
            layer_types=LAST_FULL,
            hidden_size_per_layer_input=16,
            vocab_size_per_layer_input=data.VOCABULARY,
        ),
        Stretch(DOWN_0, ("gate_proj", "up_proj")),
        keep_fp32(DOWN_0),
        "`down_proj` in FP32 by hand",
    ),
    Row(
        "qwen3-moe",
        7,
        "unsloth",
        lambda: feed_channel(build("Qwen3MoeForCausalLM", EXPERTS), gain=8),
        Stretch(EXPERTS_0, parameter="down_proj", index=(slice(None), 0)),
        keep_fp32(EXPERTS_0),
        "experts in FP32 by hand",
        norms=NORMS,
    ),
    Row(
        "phi",
        8,
        "transformers#28163, #35235",
        partial(build, "PhiForCausalLM", DECODER, "eager"),
        with_offset(ATTENTION, ("q_proj", "k_proj"), 15),
        FP32_SCORES,
        SCORES,
        places=(ATTENTION,),
    ),
    Row(
        "gpt-neox",
        9,
        "transformers#30199",
        partial(build, "GPTNeoXForCausalLM", DECODER, "eager"),
        offset_neox,
        FP32_SCORES,
        SCORES,
        places=("gpt_neox.layers.*.attention",),
    ),
    Row(
        "qwen2",
        10,
        "transformers#33312, #33317, #35151",
        partial(build, "Qwen2ForCausalLM", DECODER, "eager"),
        with_offset(ATTENTION, ("q_proj", "k_proj"), 7),  # the pair that turns slowest
        FP32_SCORES,
        SCORES,
        places=(ATTENTION,),
    ),
    Row(
        "gpt-oss",
        12,
        "transformers, a warning",
        partial(build, "GptOssForCausalLM", EXPERTS, "eager", num_local_experts=4),
        set_channel("model.layers.*.mlp.experts", "down_proj_bias", (slice(None), 0), 3e4),
        places=("model.layers.*",),
        note="FP16 weights, because under autocast the sum is FP32",
        norms=NORMS,
        precision=Precision.FP16_WEIGHTS,
    ),
    Row(
        "opt",
        13,
        "transformers#17437, #18057",
        partial(
            build,
            "OPTForCausalLM",
            DECODER,
            "eager",
            ffn_dim=128,
            word_embed_proj_dim=64,
            dropout=0,
        ),
        with_offset(OPT, ("q_proj", "k_proj"), 0, large=-10.0),
        FP32_SCORES,
        SCORES,
        places=(OPT,),
        batch=data.left_padded,
        note="FP16 weights, because under autocast the mask is FP32",
        precision=Precision.FP16_WEIGHTS,
    ),
    Row(
        "qwen3-next",
        14,
        "transformers#40771, #47831",
        qwen3_next,
        set_channel(LINEAR_ATTENTION, "A_log", 0, 11.5),
        partial(take_out, pattern=LINEAR_ATTENTION),
        "`A_log.float()`",
        places=(LINEAR_ATTENTION,),
        note="the old line; FP16 weights, because under autocast the parameter is FP32",
        precision=Precision.FP16_WEIGHTS,
    ),
    Row(
        "deberta",
        16,
        "microsoft/DeBERTa#77",
        deberta,
        with_offset(DEBERTA, ("query_proj", "key_proj"), 0, small=60.0, large=1.5e4),
        places=(DEBERTA,),
        note="no module is published; the attention scores were chosen",
    ),
    Row(
        "lora",
        21,
        "peft",
        lora,
        Stretch(LORA_DOWN),
        note="the frozen base model is FP16",
        norms=tuple(LORA + name for name in NORMS),
        half_base=True,
        learning_rate=1e-2,
    ),
]
