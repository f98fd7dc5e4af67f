"""Repeat the observed forward pass in another way: in FP32, by CUDA's autocast rules, or as compiled code.

Every repeat starts from the same attributes and the same random state as the first pass. With several ranks
nothing is repeated: a forward pass may wait for the other ranks, which may have nothing to repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from halfguard.diagnosis.model.forward import loss_in, quiet
from halfguard.diagnosis.model.restore_model import restore_afterwards
from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.dist.collectives import world_size
from halfguard.precision.islands import fp32_island
from halfguard.precision.modes import without_autocast
from halfguard.records.autopsy import Culprit
from halfguard.step.nested import floating_tensors, iter_leaves
from halfguard.step.random_state import capture_random_state
from halfguard.tracing.audit import audit
from halfguard.tracing.first_nonfinite import find_first_nonfinite
from halfguard.tracing.rounding import attribute, tape_finite_step


@dataclass(frozen=True)
class RepeatedForward:
    """The floating-point results of a repeated pass by name, or the error that it raised."""

    results: dict[str, Tensor]
    error: str = ""
    drew_random_numbers: bool = False

    @property
    def is_finite(self) -> bool:
        return not self.error and bad_result(self.results) is None


def can_repeat(setup: TrainingSetup) -> bool:
    """Return whether the forward pass was run, and may be run again."""
    ran = setup.forward is not None and setup.forward.error is None
    return ran and setup.model is not None and setup.run_forward is not None and world_size() == 1


def named_results(result: Any) -> dict[str, Tensor]:
    """Return the loss of a forward pass, or, if it returned no loss, its floating-point outputs."""
    loss = loss_in(result)
    if loss is not None and loss.numel() == 1 and loss.is_floating_point():
        return {"the loss": loss.detach()}
    return {
        f"the output{f' {path}' if path else ''}": tensor.detach()
        for path, tensor in floating_tensors(result)
    }


def bad_result(results: dict[str, Tensor]) -> str | None:
    """Return ``"the loss is nan"`` for the first result that is bad, or None.

    In outputs with several elements -inf is accepted: it is how logits are masked.
    """
    for name, tensor in results.items():
        if tensor.isnan().any():
            return f"{name} is nan" if tensor.numel() == 1 else f"{name} contains nan"
        if tensor.numel() == 1 and tensor.isinf().any():
            return f"{name} is {tensor.item():g}"
        if tensor.isposinf().any():
            return f"{name} contains inf"
    return None


def relative_error(one: Tensor, other: Tensor) -> float:
    """Return the difference of the finite values, relative to the larger norm."""
    finite = one.isfinite() & other.isfinite()  # masked logits are -inf
    one, other = one[finite].double(), other[finite].double()
    larger = max(float(one.norm()), float(other.norm()))
    return float((one - other).norm()) / larger if larger else 0.0


def repeat_forward(
    setup: TrainingSetup,
    context: AbstractContextManager[Any] | None = None,
    *,
    eager: bool = True,
    island: str | None = None,
) -> RepeatedForward:
    """Run the forward pass again in a context; ``island`` makes a module an FP32 island meanwhile."""
    assert setup.model is not None  # noqa: S101 - see can_repeat
    assert setup.run_forward is not None  # noqa: S101
    with restore_afterwards(setup.model), quiet(eager), torch.inference_mode(False):
        try:
            if island is not None:
                fp32_island(setup.model.get_submodule(island))
            before = capture_random_state()
            with torch.enable_grad(), context or nullcontext():
                results = named_results(setup.run_forward())
            return RepeatedForward(results, drew_random_numbers=_differ(before))
        except Exception as error:  # noqa: BLE001  any error of the user's code
            return RepeatedForward({}, (str(error) or type(error).__name__).splitlines()[0])


@contextmanager
def in_fp32(setup: TrainingSetup) -> Iterator[None]:
    """Run the block with FP32 weights and without autocast; casts in the user's code stay."""
    assert setup.model is not None  # noqa: S101 - see can_repeat
    with restore_afterwards(setup.model), without_autocast("cpu", setup.device_type):
        setup.model.float()
        yield


def find_culprit(
    setup: TrainingSetup, context: AbstractContextManager[Any] | None = None
) -> Culprit | None:
    """Return the operation that returned the first NaN or Inf of the forward pass."""
    model, run = setup.model, setup.run_forward
    assert model is not None  # noqa: S101 - see can_repeat
    assert run is not None  # noqa: S101

    def step() -> Tensor | None:
        results = named_results(run())
        bad = (tensor for tensor in results.values() if bad_result({"": tensor}))
        return next(bad, None)

    with restore_afterwards(model), quiet(eager=True), context or nullcontext():
        for (
            module
        ) in model.modules():  # the search writes buffers back, which breaks a pending backward
            module._buffers |= {
                n: b if b is None else b.clone() for n, b in module._buffers.items()
            }
        try:
            return find_first_nonfinite(step, model)
        except Exception:  # noqa: BLE001  the pass is described without it
            return None


def find_lossy_line(setup: TrainingSetup) -> tuple[str, int, str] | None:
    """Return file and line that overflow unseen, or lose digits, and what happens there; None if unknown."""
    model, run = setup.model, setup.run_forward
    assert model is not None  # noqa: S101 - see can_repeat
    assert run is not None  # noqa: S101

    def step() -> Tensor:
        result = run()
        loss = loss_in(result)
        if loss is not None and loss.numel() == 1:
            return loss.float()
        squares = [one.float().square().mean() for _, one in floating_tensors(result)]
        return torch.stack(squares).sum()

    with restore_afterwards(model), quiet(eager=True), torch.inference_mode(False):
        try:
            for one in audit(step, model).findings:
                return one.file, one.line, f"{one.op} {one.fault}s there ({one.code})"
            is_fp16 = setup.trains_through_fp16 or next(model.parameters()).dtype is torch.float16
            taped = tape_finite_step(step, model, is_fp16=is_fp16)
            if taped.dtype is not None:
                for found in attribute(taped, taped.dtype).findings:
                    file, _, line = found.place.rpartition(":")
                    how = f"digits are lost there ({found.code}), which causes {found.share:.0%} of the error"
                    return file, int(line), how
        except Exception:  # noqa: BLE001  the difference is reported without it
            return None
    return None


def _differ(before: dict[str, Any]) -> bool:
    """Return whether torch's generators, of host or devices, have left an earlier state."""
    now = capture_random_state()
    states = [
        [leaf for _, leaf in iter_leaves([state.get("torch"), state.get("accelerator")])]
        for state in (before, now)
    ]
    return any(
        isinstance(old, Tensor) and not torch.equal(old, new)
        for old, new in zip(*states, strict=True)
    )
