"""Recovery when skipping is not enough: roll back with a smaller learning rate, then try remedies.

A rollback restores the last good snapshot and cuts the learning rate. After ``max_rollbacks`` of them, the
remedies that people try by hand are tried in order, each alone, from the last good snapshot: FP32, a much
lower learning rate, a longer growth interval, tighter clipping. The last remedy, changing the operation
itself, is left to the user; the error that ends the run says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from halfguard.errors import UsageError
from halfguard.guard.config import ClipConfig, GuardConfig, RecoveryConfig, Remedy
from halfguard.guard.learning_rates import LearningRates
from halfguard.guard.recovery.disk_store import DiskStore
from halfguard.guard.recovery.snapshot_store import MemoryStore, SnapshotStore
from halfguard.guard.recovery.snapshots import Snapshots
from halfguard.guard.scheduler_and_ema import Stateful
from halfguard.step.parameters import parameters_of
from halfguard.step.random_state import capture_random_state

logger = logging.getLogger("halfguard")

_PROVE = 50  # applied steps after which a snapshot counts as good; at most half of ``every``
_LR_CUT = 0.5  # at each rollback
_LOWER_LR = 0.1
_LONGER_GROWTH = 2.5  # 2000 becomes 5000
_TIGHTER_CLIP = 0.2  # 5.0 becomes 1.0


class Recovery:
    """Takes snapshots during healthy steps, and rolls back to them."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        others: Mapping[str, Stateful],
        config: GuardConfig,
        run_dir: Path | None,
        describe: Callable[[], dict[str, Any]],
        private: Set[int] = frozenset(),
        *,
        rates: LearningRates,
    ) -> None:
        assert config.recovery is not None  # noqa: S101 - constructed only if configured
        self._rules: RecoveryConfig = config.recovery
        self._prove = min(_PROVE, (config.recovery.every + 1) // 2)
        self.base = config  # every remedy starts from it
        self._optimizers, self._others, self._rates = optimizers, others, rates
        for optimizer in optimizers:
            _raise_if_sharded_optimizer(optimizer)
        self._describe = describe  # state of the guard, for a run that continues in another process
        self._model = model
        parts = {f"optimizer{i}": optimizer for i, optimizer in enumerate(optimizers)}
        device = next(p.device for p in model.parameters())
        store = self._store(run_dir, device)
        self._snapshots = Snapshots(model, parts | dict(others), store, device, private)
        self._lr_cut = 1.0  # by rollbacks; permanent
        self._in_force = 1.0  # the same times the cut of the remedy on trial
        self._healthy = 0  # applied steps since the candidate was taken, or since the last bad step
        self._since = 0  # applied steps since a snapshot was taken
        self._oldest = 0  # first step whose snapshots fit the present parameters
        self.restart()

    def resume(self, prepare: Callable[[Mapping[str, Any]], None]) -> dict[str, Any] | None:
        """Load the last good snapshot in ``run_dir``; return the guard's state in it, or None.

        ``prepare`` gets that state before weights are loaded.
        """
        if not self._snapshots.adopt():
            return None
        kept = self._snapshots.restore(lambda extra: prepare(extra["run"]))
        self._begun = True
        run: dict[str, Any] = kept["run"]
        return run

    def begin(self) -> None:
        """Take the first candidate, at the start of the first step: until then weights may be loaded."""
        if self._begun:
            return
        if self._snapshots.adopt(at_most=self._describe()["counters"]["step"]):
            logger.info(
                "training resumes; the last good snapshot is from step %d",
                self._snapshots.good_step,
            )
        self._begun = True
        self._take_snapshot(self._at_start)

    @property
    def ready(self) -> bool:
        """True if there is a good snapshot to roll back to."""
        good = self._snapshots.good_step
        return good is not None and good >= self._oldest

    def on_new_parameters(self) -> None:
        """Note that the optimizers hold other parameters: older snapshots can only serve a restart."""
        self._oldest = self._describe()["counters"]["step"]
        if self._begun:
            self._take_snapshot()

    def applied(self) -> None:
        """Count an applied step: confirm the candidate or take the next one if it is time."""
        self._healthy += 1
        self._since += 1
        if self._healthy == self._prove:
            self._snapshots.confirm()
        if self._since >= self._rules.every:
            self._take_snapshot()

    def bad(self) -> None:
        """Restart the count that confirms a candidate: a step was not applied."""
        self._healthy = 0

    def roll_back(self, remedy: Remedy | None) -> GuardConfig:
        """Restore the good snapshot; return the configuration with the remedy applied."""
        planned = self._rates.planned()
        kept = self._snapshots.restore()
        if remedy is None:
            self._lr_cut *= _LR_CUT
        self._in_force = self._lr_cut * (_LOWER_LR if remedy == "lower_lr" else 1.0)
        self._rates.roll_back(self._in_force, planned, kept["run"]["recovery"]["rates"])
        self._healthy = self._since = 0
        logger.warning(
            "rolled back to step %d, learning rate set to %.3g of the scheduled value%s",
            self._snapshots.good_step,
            self._in_force,
            f", trying: {remedy}" if remedy else "",
        )
        self._warn_of_rates()
        return self._config_with(remedy)

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save. Snapshots are not part of it: the checkpoint takes their place."""
        return {
            "lr_cut": self._lr_cut,
            "in_force": self._in_force,
            "rates": self._rates.state_dict(),
            "base": self.base.model_dump(mode="json"),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._lr_cut, self._in_force = state["lr_cut"], state["in_force"]
        self._rates.load_state_dict(state["rates"])
        self.base = GuardConfig.load(state["base"])

    def restart(self) -> None:
        """Take the first candidate at the next step, with the present random state.

        At the next step the loop has already drawn its first batch, and would draw it again.
        """
        self._begun = False
        self._at_start = capture_random_state()

    def close(self) -> None:
        """Wait for pending writes; drop the candidate, which can no longer be confirmed."""
        self._snapshots.close()

    def _take_snapshot(self, random_state: dict[str, Any] | None = None) -> None:
        run = self._describe()
        step = run["counters"]["step"]
        if self._snapshots.take(step, {"run": run}, random_state or capture_random_state()):
            self._healthy = self._since = 0
        else:
            logger.warning(
                "step %d: weights or optimizer state are not finite, so no snapshot was taken", step
            )

    def _store(self, run_dir: Path | None, device: torch.device) -> SnapshotStore:
        if self._rules.store == "memory":
            return MemoryStore()
        if run_dir is None:
            raise UsageError(
                "recovery.store='disk' needs a folder to write to, but the guard has no run_dir.",
                cure="Pass run_dir='runs/name' to the guard, or use recovery.store='memory'.",
            )
        return DiskStore(run_dir / "snapshots", device, self._live)

    def _live(self) -> dict[str, Any]:
        """Return live tensors in the structure of a state; parameters stand for moments not made yet."""
        live: dict[str, Any] = {name: part.state_dict() for name, part in self._others.items()}
        for index, optimizer in enumerate(self._optimizers):
            live[f"optimizer{index}"] = {"state": dict(enumerate(parameters_of(optimizer)))}
        return live | {"model": self._model.state_dict()}

    def _config_with(self, remedy: Remedy | None) -> GuardConfig:
        base = self.base
        if remedy == "fp32":
            return base.model_copy(update={"precision": "fp32"})
        if remedy == "longer_growth_interval":
            interval = int(base.scale.growth_interval * _LONGER_GROWTH)
            scale = base.scale.model_copy(update={"growth_interval": interval})
            return base.model_copy(update={"scale": scale})
        if remedy == "tighter_clip":
            clip = base.clip or ClipConfig(max_norm=1.0 / _TIGHTER_CLIP)
            tighter = clip.model_copy(update={"max_norm": clip.max_norm * _TIGHTER_CLIP})
            return base.model_copy(update={"clip": tighter})
        return base

    def _warn_of_rates(self) -> None:
        for name in self._rates.uncuttable():
            logger.warning(
                "%s chooses its own learning rate (lr=None), which recovery does not reduce", name
            )
        for name in self._rates.stepped_by_user():
            logger.warning(
                "the guard does not step the scheduler of %s, so the learning rate was reduced "
                "only once. Schedulers that compute the rate from base rates (LambdaLR, "
                "OneCycleLR, CyclicLR) undo this at their next step. To keep the reduction, pass "
                "a scheduler that counts steps instead of epochs to the guard.",
                name,
            )


def _raise_if_sharded_optimizer(optimizer: Optimizer) -> None:
    # ZeroRedundancyOptimizer and similar ones need this method called before state_dict().
    if hasattr(optimizer, "consolidate_state_dict"):
        raise UsageError(
            f"recovery cannot take snapshots of a {type(optimizer).__name__} because each rank "
            "holds only part of its state. Every snapshot would have to gather the whole state on "
            "every rank.",
            cure="Use FSDP2 (fully_shard) with a plain optimizer, whose state each rank saves itself, or "
            "disable recovery and save your own checkpoints.",
        )
