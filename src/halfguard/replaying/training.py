"""Train on from an incident with the best candidates, and with FP32, and compare what was learnt.

One step shows that a change is finite and how far its gradients are off. Some dozen steps show whether a run
is healthy with it: how many are applied, where the loss scale ends, and the loss of the model that was
trained. That loss is computed in FP32 on the same batches for all, with compositions as they are meant,
because a change may replace the loss function itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from halfguard.precision.islands import fp32_island
from halfguard.precision.modes import full_precision
from halfguard.precision_names import Precision
from halfguard.records.autopsy import TrainedRun
from halfguard.replaying.composition_rewrite import CompositionRewrite
from halfguard.replaying.cures import Candidate
from halfguard.replaying.replayed_step import UNCHANGED, ReplayedStep, Variation
from halfguard.replaying.restore import load_model
from halfguard.replaying.samples import map_tensors
from halfguard.step.random_state import seeded
from halfguard.workload import Workload
from halfguard.workload.training import TrainingStep

MOST_CANDIDATES = 3
_EVALUATED = 8  # batches on which trained models are compared
_AS_GOOD = 0.2  # share of FP32's progress that a candidate may lack
_LOST = 0.1  # share of steps that it may skip while the loss scale adapts


def train_candidates(
    step: ReplayedStep, candidates: list[Candidate], steps: int, watch: Callable[[str], None]
) -> tuple[list[TrainedRun], list[Candidate]]:
    """Train with FP32 and the best candidates; return the runs, and the candidates in their new order."""
    trained = [one for one in candidates if one.change is not None][:MOST_CANDIDATES]
    start = _train(step, "no steps", UNCHANGED, 0, watch)
    full = _train(step, "FP32", Variation(precision=Precision.FP32), steps, watch)
    runs = [_train_one(step, one, full, watch) for one in trained]
    allowed = _worst_loss(start.loss, full.loss)
    most = max((run.applied for run in runs), default=0)

    def order(item: tuple[Candidate, TrainedRun]) -> tuple[bool, float]:
        candidate, run = item
        loss = math.inf if run.loss is None or math.isnan(run.loss) else run.loss
        healthy = loss <= allowed and run.applied >= most - max(1, int(_LOST * steps))
        return not healthy, float(candidate.reach) if healthy else loss

    ranked = [one for one, _ in sorted(zip(trained, runs, strict=True), key=order)]
    return [full, *runs], [*ranked, *(one for one in candidates if one not in trained)]


def _train_one(
    step: ReplayedStep, candidate: Candidate, full: TrainedRun, watch: Callable[[str], None]
) -> TrainedRun:
    name, change = candidate.trial.name, candidate.change
    if change is None or change().precision is Precision.FP32:
        return full.model_copy(update={"name": name})
    # From the scale that fits: how fast a dynamic scale finds it is not the question.
    variation = replace(change(), scale=candidate.trial.largest_scale)
    return _train(step, name, variation, full.steps, watch)


def _worst_loss(start: float | None, full: float | None) -> float:
    """Return the loss up to which a run is as good as FP32's."""
    if full is None or math.isnan(full):
        return math.inf  # FP32 is no measure here
    progress = 0.0 if start is None or not math.isfinite(start) else max(0.0, start - full)
    return full + _AS_GOOD * max(progress, 0.01 * abs(full))


def _train(
    step: ReplayedStep, name: str, variation: Variation, steps: int, watch: Callable[[str], None]
) -> TrainedRun:
    try:
        return _Run(step, name, variation, steps, watch).result()
    except Exception as error:  # noqa: BLE001 - the user's code, under changed conditions
        message = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return TrainedRun(name=name, steps=steps, note=message)


class _Run:
    """One run from the weights of the incident on."""

    def __init__(
        self,
        step: ReplayedStep,
        name: str,
        variation: Variation,
        steps: int,
        watch: Callable[[str], None],
    ) -> None:
        self.step, self.name, self.variation, self.steps = step, name, variation, steps
        self._watch = watch
        self.workload = step.workload.fresh()
        precision = variation.precision or step.precision
        self.workload.store_weights_as(precision)
        load_model(self.workload, step.incident)
        if not precision.needs_master_weights:
            self.workload.model.float()
        for path in variation.islands:
            fp32_island(self.workload.model.get_submodule(path))
        scale = step.record.config.get("scale")
        init = scale.get("init", 65536.0) if isinstance(scale, dict) else 65536.0
        self.training = TrainingStep(
            self.workload,
            precision,
            cuda_rules=step.emulated,
            init_scale=float(init if variation.scale is None else variation.scale),
        )

    def result(self) -> TrainedRun:
        applied = 0
        with seeded(self.workload.seed):
            for index, batch in enumerate(self._batches()):
                self._watch(f"training with {self.name}, step {index + 1} of {self.steps}")
                applied += self._step(batch)
        scaler = self.training.scaler
        return TrainedRun(
            name=self.name,
            steps=self.steps,
            applied=applied,
            scale=scaler.get_scale() if scaler.is_enabled() else None,
            loss=evaluate(self.workload, _as_they_were(self.step, _EVALUATED)),
        )

    def _batches(self) -> Iterator[Any]:
        return _as_they_were(self.step, self.steps)

    def _step(self, batch: Any) -> bool:
        """Train on one batch; return whether the step was applied."""
        with self.variation.context:
            loss = self.training.forward(batch)
            self.training.backward(loss)
        self.training.unscale()
        finite = all(bool(grad.isfinite().all()) for grad in self.training.gradients())
        if finite:
            self._clip()
        if finite or self.training.scaler.is_enabled():
            self.training.update()
        return finite

    def _clip(self) -> None:
        clip = self.step.record.config.get("clip")
        if isinstance(clip, dict) and "max_norm" in clip:
            params = [p for p in self.workload.model.parameters() if p.grad is not None]
            order = float(clip.get("norm_type", 2.0))
            torch.nn.utils.clip_grad_norm_(params, float(clip["max_norm"]), norm_type=order)


def _as_they_were(step: ReplayedStep, count: int) -> Iterator[Any]:
    """Yield copies of batches: those of the incident, then those of the job."""
    own = iter(step.batches[:count])
    rest = step.workload.take(count - min(count, len(step.batches)))
    return (map_tensors(batch, torch.clone) for batch in chain(own, rest))


@torch.no_grad()
def evaluate(workload: Workload, batches: Iterator[Any]) -> float:
    """Return the mean loss of a model in FP32, with compositions as they are meant."""
    losses = []
    device = workload.device.type
    with seeded(workload.seed), CompositionRewrite(lambda _: True, meaning=True):
        for batch in batches:
            with full_precision(device):
                losses.append(workload.loss_of(batch).item())
    finite = [loss for loss in losses if math.isfinite(loss)]
    return sum(finite) / len(finite) if len(finite) * 2 > len(losses) else math.nan
