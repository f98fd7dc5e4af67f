from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import halfguard as hg
from tests.diagnosis.model.checks.helper import codes, cured, found, net

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("framework")]


class Poisoned(nn.Module):
    """Its loss is NaN in every second batch, and does not hurt the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.calls = net(), 0

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        loss = self.net(x).square().mean()
        return {"loss": loss if self.calls % 2 else loss + math.nan * loss.detach()}


def arguments(folder: Path, **more: Any) -> Any:
    return TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        max_steps=4,
        logging_steps=4,
        per_device_train_batch_size=1,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        **more,
    )


def logged(args: Any) -> float:
    trainer = Trainer(model=Poisoned(), args=args, train_dataset=[{"x": torch.ones(4)}] * 4)
    trainer.train()
    return float(trainer.state.log_history[0]["loss"])


@pytest.mark.slow
def test_the_filter_hides_nan_and_without_it_nan_is_logged(tmp_path: Path) -> None:
    args, batch = arguments(tmp_path, bf16=True), {"x": torch.ones(2, 4)}
    diagnosis = hg.doctor(Poisoned(), trainer=args, batch=batch)
    assert codes(diagnosis) == ["HD115"]
    assert diagnosis.ok  # the filter is on by default
    assert math.isfinite(logged(args))
    cured(found(diagnosis, "HD115"), args=args)
    assert hg.doctor(Poisoned(), trainer=args, batch=batch).findings == ()
    assert math.isnan(logged(args))


def test_half_weights_are_enough_and_fp32_is_not_concerned(tmp_path: Path) -> None:
    args = arguments(tmp_path)
    assert hg.doctor(net(), trainer=args).ok
    assert codes(hg.doctor(net().bfloat16(), trainer=args)) == ["HD104", "HD115"]


def test_it_is_a_warning_where_the_loss_is_nan_already(tmp_path: Path) -> None:
    model = Poisoned()
    model.calls = 1
    diagnosis = hg.doctor(
        model, trainer=arguments(tmp_path, bf16=True), batch={"x": torch.ones(2, 4)}
    )
    assert found(diagnosis, "HD115").severity == "warning"
