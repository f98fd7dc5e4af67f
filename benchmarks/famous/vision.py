"""Models that read images or sound, and models that make images."""

from __future__ import annotations

import importlib
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from transformers.models.gemma4.modeling_gemma4 import Gemma4VisionModel
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
)

from benchmarks.famous import data
from benchmarks.famous.data import Batch
from benchmarks.famous.fixes import clamp, keep_fp32, put_back, take_out, use_attention
from benchmarks.famous.language import BART, CLAMP, FC2, FP32_SCORES, SCORES, SIZES
from benchmarks.famous.row import Row, Stretch, matching
from benchmarks.famous.stretching import build, hf, set_channel, with_offset
from halfguard.precision_names import Precision


class Classifier(nn.Module):
    """Reads the class from the mean of what ``body`` returns for each image."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, 4)

    def forward(self, labels: Tensor, **inputs: Tensor) -> Tensor:
        output = self.body(**inputs)
        merged = output.pooler_output
        tokens = output.last_hidden_state if merged is None else merged
        means = tokens.reshape(len(labels), -1, tokens.shape[-1]).mean(1)
        return cross_entropy(self.head(means).float(), labels)


def own_loss(model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = model(**batch)
    return loss


def pooled_vision() -> nn.Module:
    """Return Gemma 4's images with the pooler as it first was, which scales in the dtype of its input."""
    config = hf.Gemma4VisionConfig(
        **SIZES,
        num_key_value_heads=4,
        head_dim=16,
        patch_size=4,
        pooling_kernel_size=2,
        position_embedding_size=16,
        standardize=True,
    )
    body = Gemma4VisionModel(config)
    body.std_bias.zero_()
    body.std_scale.fill_(1e-4)
    put_back(body.pooler, "hidden_states.float() * self.root", "hidden_states * self.root")
    return Classifier(body, 64)


def patches(size: int) -> tuple[Tensor, Tensor]:
    """Return images as rows of pixels, one per patch of ``size``, and their classes."""
    batch = data.images()
    cut = batch["pixel_values"].unfold(2, size, size).unfold(3, size, size)  # n c y x h w
    return cut.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2), batch["labels"]


def pooled_images() -> Batch:
    pixels, labels = patches(4)
    grid = torch.stack(torch.meshgrid(*[torch.arange(8)] * 2, indexing="xy"), -1).flatten(0, 1)
    places = grid.expand(len(labels), -1, -1)
    return {"pixel_values": pixels, "pixel_position_ids": places, "labels": labels}


def qwen_vision() -> nn.Module:
    config = Qwen2_5_VLVisionConfig(
        depth=4,
        hidden_size=64,
        intermediate_size=128,
        num_heads=4,
        out_hidden_size=64,
        patch_size=4,
        temporal_patch_size=1,
        window_size=16,
        fullatt_block_indexes=[3],
    )
    return Classifier(Qwen2_5_VisionTransformerPretrainedModel(config), 64)


def qwen_images() -> Batch:
    pixels, labels = patches(4)
    grid = torch.tensor([[1, 8, 8]] * len(labels))
    return {"hidden_states": pixels.flatten(0, 1), "grid_thw": grid, "labels": labels}


def stretch_unit(model: nn.Module) -> None:
    """Let one unit of the last MLP add 120,000 to one channel of every token."""
    for _, mlp in matching(model, MERGED.removesuffix(".down_proj")):
        for name in ("gate_proj", "up_proj"):
            mlp.get_parameter(f"{name}.weight")[0], mlp.get_parameter(f"{name}.bias")[0] = 0, 3
        write = mlp.get_parameter("down_proj.weight")
        write[:, 0] = 0
        write[0] = 0
        write[0, 0] = 1.4e4


def conformer() -> nn.Module:
    sizes = SIZES | {"conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8)}
    sizes |= {"num_feat_extract_layers": 2, "conv_depthwise_kernel_size": 7, "num_labels": 4}
    sizes |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
    dropouts = ("hidden", "activation", "attention", "final", "conformer_conv")
    sizes |= {"apply_spec_augment": False, "layerdrop": 0.0}
    sizes |= {f"{name}_dropout": 0.0 for name in dropouts}
    return build("Wav2Vec2ConformerForSequenceClassification", sizes, "scale_after_sum")


def sounds() -> Batch:
    """Return tones of four frequencies."""
    labels = torch.randint(4, (data.ROWS,))
    time = torch.arange(800) / 800
    waves = torch.sin(2 * torch.pi * 20 * (1 + labels[:, None]) * time)
    return {"input_values": waves + 0.1 * torch.randn_like(waves), "labels": labels}


def stretch_positions(model: nn.Module) -> None:
    """Let content reach 55,000, and positions 15,000 more."""
    with_offset(RELATIVE, ("linear_q", "linear_k"), 0, large=5.2e3)(model)
    for _, module in matching(model, RELATIVE):
        module.get_parameter("linear_pos.weight").mul_(8000)


def mel() -> Batch:
    """Return spectra of sequences of tones, and the tones."""
    tokens = data.sequences()
    rows = nn.functional.one_hot(tokens, data.VOCABULARY).float().repeat_interleave(2, 1)
    return {"input_features": rows.mT + 0.1 * torch.randn_like(rows.mT), "labels": tokens}


def autoencoder() -> nn.Module:
    model: nn.Module = importlib.import_module("diffusers").AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(16, 32),
        norm_num_groups=4,
        sample_size=16,
    )
    return model


def reconstruction(model: nn.Module, batch: Batch) -> Tensor:
    pixels = batch["pixel_values"]
    return mse_loss(model(pixels).sample.float(), pixels)


def flux() -> nn.Module:
    """Return a Flux of four blocks without the two clamps of today."""
    model: nn.Module = importlib.import_module("diffusers").FluxTransformer2DModel(
        in_channels=12,
        num_layers=4,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 6, 6),
    )
    for _, module in list(matching(model, FLUX, "single_transformer_blocks.*")):
        name = "encoder_hidden_states" if hasattr(module, "ff_context") else "hidden_states"
        put_back(module, f"if {name}.dtype == torch.float16", "if False")
    return model


def stretch_residual(model: nn.Module) -> None:
    """Let each block add 30,000 to one channel of the text."""
    for _, block in matching(model, FLUX):
        block.get_parameter("norm1_context.linear.bias").view(6, -1)[5, 0] = 1.0  # the gate
        block.get_parameter("ff_context.net.2.bias")[0] = 3e4


def noisy_images() -> Batch:
    images = data.images(8)["pixel_values"]
    tokens = images.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).flatten(3)
    grid = torch.stack(torch.meshgrid(*[torch.arange(4)] * 2, indexing="ij"), -1).flatten(0, 1)
    return {
        "hidden_states": tokens.flatten(1, 2),
        "encoder_hidden_states": torch.randn(data.ROWS, 4, 32),
        "pooled_projections": torch.randn(data.ROWS, 32),
        "timestep": torch.rand(data.ROWS),
        "img_ids": nn.functional.pad(grid, (1, 0)).float(),
        "txt_ids": torch.zeros(4, 3),
        "noise": torch.randn(data.ROWS, 16, 12),
    }


def denoising(model: nn.Module, batch: Batch) -> Tensor:
    inputs = dict(batch)
    clean, noise = inputs["hidden_states"], inputs.pop("noise")
    inputs["hidden_states"] = torch.lerp(clean, noise, inputs["timestep"][:, None, None])
    return mse_loss(model(**inputs).sample.float(), noise - clean)


POOLER = "body.pooler"
LAST_NORM = "body.encoder.layers.3.post_feedforward_layernorm"
MERGED = "body.blocks.3.mlp.down_proj"
RELATIVE = "wav2vec2_conformer.encoder.layers.*.self_attn"
DEIT = "deit.layers.*.attention"
SWIN = "swin.encoder.layers.*.blocks.*.attention"
CONVOLUTIONS = "decoder.up_blocks.*.resnets.*.conv2"
FLUX = "transformer_blocks.*"
VAE = ("encoder", "decoder", "quant_conv", "post_quant_conv")
IMAGES = {"image_size": 32, "num_labels": 4}
WINDOWS = {"embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
SPECTRA = {"num_mel_bins": data.VOCABULARY, "max_source_positions": 16, "max_target_positions": 32}
SPECTRA |= {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "decoder_start")}

ROWS = [
    Row(
        "gemma4-vision",
        6,
        "transformers#46277",
        pooled_vision,
        set_channel(LAST_NORM, "weight", 0, 1e4),
        partial(take_out, pattern=POOLER),
        "scaled in FP32",
        places=(POOLER,),
        batch=pooled_images,
        loss=own_loss,
        note="the old line; FP16 weights, because under autocast its input is FP32",
        precision=Precision.FP16_WEIGHTS,
    ),
    Row(
        "qwen2.5-vl",
        11,
        "open",
        qwen_vision,
        stretch_unit,
        places=(MERGED,),
        batch=qwen_images,
        loss=own_loss,
        norms=("body.merger.ln_q",),
        learning_rate=1e-4,
    ),
    Row(
        "conformer",
        15,
        "wenet#891",
        conformer,
        stretch_positions,
        use_attention("eager"),
        "scaled before the sum",
        places=(RELATIVE,),
        batch=sounds,
        note="the old form",
        learning_rate=1e-4,
    ),
    Row(
        "deit",
        17,
        "deit#109",
        partial(build, "DeiTForImageClassification", SIZES | IMAGES, "eager", patch_size=8),
        with_offset(DEIT, ("q_proj", "k_proj"), 0),
        FP32_SCORES,
        SCORES,
        places=(DEIT,),
        batch=data.images,
        note="the class from transformers",
        learning_rate=1e-4,
    ),
    Row(
        "swin",
        17,
        "deit#109",
        partial(build, "SwinForImageClassification", IMAGES | WINDOWS, "eager", drop_path_rate=0),
        with_offset(SWIN, ("q_proj", "k_proj"), 0),
        FP32_SCORES,
        SCORES,
        places=(SWIN,),
        batch=data.images,
        note="the class from transformers",
        learning_rate=1e-4,
    ),
    Row(
        "sdxl-vae",
        18,
        "diffusers: force_upcast",
        autoencoder,
        Stretch(CONVOLUTIONS),
        keep_fp32(*VAE),
        "the whole VAE in FP32",
        batch=partial(data.images, 16),
        loss=reconstruction,
    ),
    Row(
        "flux",
        19,
        "diffusers#9097",
        flux,
        stretch_residual,
        clamp(FLUX, f"single_{FLUX}"),
        "two clamps",
        places=(FLUX,),
        batch=noisy_images,
        loss=denoising,
        note="the class before the clamps",
    ),
    Row(
        "whisper",
        20,
        "transformers#19166",
        partial(build, "WhisperForConditionalGeneration", BART | SPECTRA),
        Stretch(FC2, ("fc1",)),
        clamp(FC2),
        CLAMP,
        batch=mel,
    ),
]
