"""contrib/hydra: ``trainer=fp16_safe`` and ``trainer=fp32`` compose, and make Trainers that train."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

from halfguard.guard.config import GuardConfig
from halfguard.integrations.lightning import GuardPrecision
from tests.integrations.lightning_runs import Classifier, batches
from tests.support.docs import ROOT

pytestmark = [pytest.mark.usefixtures("seed"), pytest.mark.filterwarnings("ignore")]
QUIET = ["enable_progress_bar=false", "logger=false", "enable_checkpointing=false", "max_epochs=1"]


@pytest.fixture(autouse=True)
def no_hydra() -> Iterator[None]:
    yield
    GlobalHydra.instance().clear()
    logging.getLogger("hydra").handlers.clear()


def trainer_from(group: str, folder: Path) -> Trainer:
    config_dir = str(ROOT / "contrib" / "hydra")
    with hydra.initialize_config_dir(config_dir, version_base=None):
        overrides = [f"+trainer={group}", *(f"+trainer.{o}" for o in QUIET[:-1])]
        config: Any = hydra.compose(overrides=[*overrides, f"trainer.{QUIET[-1]}"])
    if group != "fp32":
        config.trainer.plugins.run_dir = str(folder)  # compose alone has no output folder
    return instantiate(config.trainer)  # type: ignore[no-any-return]


def test_fp16_safe_trains_in_half_with_the_presets_clip_and_accumulation(tmp_path: Path) -> None:
    trainer = trainer_from("fp16_safe", tmp_path)
    preset = GuardConfig.load("fp16_safe")
    assert isinstance(trainer.precision_plugin, GuardPrecision)
    assert preset.clip is not None
    assert trainer.gradient_clip_val == preset.clip.max_norm
    assert trainer.accumulate_grad_batches == preset.accumulate
    module = Classifier()
    trainer.fit(module, DataLoader(batches(4), batch_size=None))  # type: ignore[arg-type]
    assert module.dtypes == {torch.float16}
    assert (tmp_path / "run.json").exists()


def test_fp32_is_the_same_run_in_fp32(tmp_path: Path) -> None:
    trainer = trainer_from("fp32", tmp_path)
    module = Classifier()
    trainer.fit(module, DataLoader(batches(4), batch_size=None))  # type: ignore[arg-type]
    assert module.dtypes == {torch.float32}
    other = trainer_from("fp16_safe", tmp_path)
    assert trainer.gradient_clip_val == other.gradient_clip_val
    assert trainer.accumulate_grad_batches == other.accumulate_grad_batches
