"""A small audio encoder in front of a causal language model, as one model of transformers."""

import math
from functools import cache

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedModel

WINDOW, HOP, BANDS = 512, 400, 40


class AudioConfig(PretrainedConfig):
    model_type = "audio_lora"

    def __init__(self, vocab_size=16, width=64, layers=2, half_features=False, **kwargs):
        self.vocab_size, self.width, self.layers = vocab_size, width, layers
        self.half_features = half_features
        super().__init__(**kwargs)

    @property
    def hidden_size(self):
        return self.width


@cache
def mel_filters(device, rate=22_050):
    """Return the weights of triangular mel bands over the frequencies of a window."""
    mel = torch.linspace(0, 2595 * math.log10(1 + rate / 1400), BANDS + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    frequencies = torch.linspace(0, rate / 2, WINDOW // 2 + 1)[:, None]
    up = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    down = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    return torch.minimum(up, down).clamp(min=0).to(device)


class LogMel(nn.Module):
    """Log mel energies of samples that are 16-bit integers, as Kaldi's features have them.

    The energy of a loud frame is 1e12. With ``half`` the filters are a matrix product like any other, and
    autocast computes it in half, which ends at 65504.
    """

    def __init__(self, half):
        super().__init__()
        self.half_features = half

    def forward(self, waveforms):
        frames = waveforms.float().unfold(-1, WINDOW, HOP) * torch.hann_window(
            WINDOW, device=waveforms.device
        )
        power = torch.view_as_real(torch.fft.rfft(frames)).square().sum(-1)
        if self.half_features:
            energy = power @ mel_filters(power.device)
        else:
            with torch.autocast(waveforms.device.type, enabled=False):
                energy = power @ mel_filters(power.device)
        return (energy + 1.0).log() / 8 - 1.5


class AudioLanguageModel(PreTrainedModel):
    config_class = AudioConfig
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        width = config.width
        self.features = LogMel(config.half_features)
        self.encoder = nn.Sequential(
            nn.Conv1d(BANDS, width, 5, stride=2),
            nn.GELU(),
            nn.Conv1d(width, width, 5, stride=2),
            nn.GELU(),
        )
        self.projector = nn.Linear(width, width)
        self.language = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=width,
                intermediate_size=2 * width,
                num_hidden_layers=config.layers,
                num_attention_heads=4,
                max_position_embeddings=64,
                bos_token_id=0,
                eos_token_id=1,
            )
        )
        self.post_init()

    def forward(self, waveforms, labels):
        features = self.features(waveforms).to(self.encoder[0].weight.dtype)
        heard = self.projector(self.encoder(features.transpose(1, 2)).transpose(1, 2))
        written = self.language.get_input_embeddings()(labels[:, :-1])
        inputs = torch.cat([heard, written.to(heard.dtype)], 1)
        logits = (
            self.language(inputs_embeds=inputs, use_cache=False).logits[:, heard.shape[1] :].float()
        )
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}
