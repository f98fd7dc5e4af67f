"""A mel spectrum is computed under float16 autocast.

## What it does
Finds a module that calls torchaudio's `MelSpectrogram`, `MelScale` or `MFCC`, or torchlibrosa's
`LogmelFilterBank`, where float16 autocast is on.

## Why is this bad?
The mel filter is a matrix product, which autocast runs in float16. The power of a spectrum of 1,024 samples
reaches 262,144, which is infinite in float16, and the quiet bands, often below 6e-8, become zero: their
logarithm is -inf.

## Example
```py
import torch
from torch import nn
from torchaudio.transforms import MelSpectrogram

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mel = MelSpectrogram(16000)

    @torch.autocast("cuda", dtype=torch.float16)
    def forward(self, audio):
        return (self.mel(audio) + 1e-5).log()
```

## Use instead
```py
import torch
from torch import nn
from torchaudio.transforms import MelSpectrogram

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mel = MelSpectrogram(16000)

    def forward(self, audio):
        with torch.autocast("cuda", enabled=False):
            return (self.mel(audio.float()) + 1e-5).log()
```

## References
A spectrum is part of the data: compute it before the model, or in float32.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import called_name, name_of
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

_MELS = {"MelSpectrogram", "MelScale", "MFCC", "LogmelFilterBank"}
_LIBRARIES = ("torchaudio.", "torchlibrosa.")
META = Meta(
    code="HG116",
    name="mel-under-autocast",
    cure="Turn autocast off around the spectrum, and give it float32 audio.",
    contains=tuple(sorted(_MELS)),
    needs_half=True,
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find calls of mel filters under autocast."""
    if file.project.known and not file.project.scales_losses:
        return
    made = {
        name
        for name, assigned in file.assignments.items()
        if any(isinstance(a.value, ast.Call) and _is_mel(file, a.value) for a in assigned)
    }
    for call in file.nodes(ast.Call):
        is_lowered = name_of(call.func) in made and file.autocast.lowers_to(call) == "float16"
        if is_lowered and file.roles.is_in_nn_module(call) and not file.is_inference(call):
            message = "The mel filter runs in float16 here: loud spectra become infinite."
            yield match_at(call, message)


def _is_mel(file: PythonFile, made: ast.Call) -> bool:
    """Return whether a constructor is that of a mel filter of torchaudio or torchlibrosa."""
    return called_name(made) in _MELS and file.full_name(made.func).startswith(_LIBRARIES)
