"""The part of the Lightning adapter that is a callback: the next batch, and what loggers are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from halfguard.guard.hosted import HostedGuard


class GuardCallback(Callback):
    """Notes the next batch for the plugin, and tells progress bar and loggers about each epoch."""

    def __init__(self, guard: HostedGuard) -> None:
        self._guard = guard
        self.batch: list[Any] = [None, 0]  # the present one, and its index

    def on_train_batch_start(self, trainer: Trainer, *call: Any) -> None:
        """Note the batch, and the epoch: a run that is resumed may begin in the middle of one."""
        _, *self.batch = call
        self._guard.epoch = trainer.current_epoch

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the counts of the epoch, to the progress bar as well."""
        summary = self._guard.end_epoch()
        row = {
            "halfguard/epoch_skipped": float(sum(summary.skipped.values())),
            "halfguard/epoch_retried": float(summary.retried),
            "halfguard/epoch_scale": summary.scale,
        }
        pl_module.log_dict(row, prog_bar=True, sync_dist=trainer.world_size > 1)


def log_to_all(trainer: Trainer, metrics: dict[str, float], _: int) -> None:
    """Log to every logger of the Trainer, at its own step."""
    for logger in trainer.loggers:
        logger.log_metrics(metrics, trainer.global_step)


@contextmanager
def without_logging(module: LightningModule) -> Iterator[None]:
    """Run a training step again without logging a second time."""

    def nothing(*_: Any, **__: Any) -> None:
        pass

    names: tuple[str, ...] = ("log", "log_dict")
    own = {name: vars(module)[name] for name in names if name in vars(module)}
    vars(module).update(log=nothing, log_dict=nothing)
    try:
        yield
    finally:
        del module.log, module.log_dict
        vars(module).update(own)
