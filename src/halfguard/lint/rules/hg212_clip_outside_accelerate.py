"""Gradients are clipped by torch while Accelerate still holds them scaled."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.accelerators import may_run_in_fp16
from halfguard.lint.expressions import name_of, receiver
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    contains=("clip_grad",),
    also_contains=("accelerator.backward",),
)
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")


def check(file: PythonFile) -> Iterator[Match]:
    """Find torch's clipping next to the backward pass of an Accelerator."""
    if any(True for _ in file.calls("unscale_gradients", "unscale_")) or not may_run_in_fp16(file):
        return
    around = {
        file.function_of(call)
        for call in file.calls("backward")
        if name_of(receiver(call)).endswith("accelerator")
    }
    for call in file.calls(*_CLIPS):
        if file.function_of(call) in around and file.full_name(call.func).startswith("torch."):
            message = "Accelerate has not unscaled these gradients yet when torch clips them."
            yield match_at(call, message)
