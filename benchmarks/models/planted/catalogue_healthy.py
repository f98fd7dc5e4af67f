"""The healthy jobs: FP16 needs no help with any of them."""

from __future__ import annotations

from benchmarks.models.planted import healthy_attention as attention
from benchmarks.models.planted import healthy_layers as layers
from benchmarks.models.planted.base import Healthy

HEALTHY_RUNS: tuple[Healthy, ...] = (
    Healthy("decoder_inf_mask", "GPT", attention.decoder_inf_mask),
    Healthy("decoder_log_mask", "GPT", attention.decoder_log_mask),
    Healthy("decoder_finfo_mask", "GPT", attention.decoder_finfo_mask),
    Healthy("decoder_billion_mask", "GPT", attention.decoder_billion_mask),
    Healthy("encoder_padding", "transformer encoder", attention.encoder_padding),
    Healthy("mixture_top_k", "mixture of experts", attention.mixture_top_k),
    Healthy("head_huge_negative", "MLP", attention.head_huge_negative),
    Healthy("attention_window", "banded attention", attention.attention_window),
    Healthy("cnn_raw_pixels", "CNN", layers.cnn_raw_pixels),
    Healthy("mlp_large_offset", "MLP", layers.mlp_large_offset),
    Healthy("rms_in_float32", "MLP", layers.rms_in_float32),
    Healthy("saturated_gates", "MLP", layers.saturated_gates),
    Healthy("ratings_logsigmoid", "neural collaborative filtering", layers.ratings_logsigmoid),
    Healthy("vae_clamped", "VAE", layers.vae_clamped),
    Healthy("graph_max_neighbours", "GNN", layers.graph_max_neighbours),
    Healthy("gru_counts", "GRU", layers.gru_counts),
    Healthy("unet_dice_float32", "U-Net", layers.unet_dice_float32),
    Healthy("contrastive_logsumexp", "two tower", layers.contrastive_logsumexp),
    Healthy("diffusion_min_snr", "diffusion", layers.diffusion_min_snr),
    Healthy("mlp_sparse_labels", "MLP", layers.mlp_sparse_labels),
)
