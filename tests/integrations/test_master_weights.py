"""FP16 weights in each framework, without a guard: the table in docs/how-to/fp16-weights.md."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from halfguard.precision.master_weights import MasterWeights
from tests.support import quiet
from tests.support.docs import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("seed"),
    pytest.mark.filterwarnings("ignore"),
]
ROWS = 4
MAX_NORM = 0.5
LEARNING_RATE = 1e-3


class Net(nn.Module):
    """Has a gradient of norm 8 whatever its weights are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False).half()
        nn.init.ones_(self.layer.weight)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out = self.layer(x)
        assert out.dtype is torch.float16
        return {"loss": out.float().mean(0).sum()}


def masters_of(model: Net) -> MasterWeights:
    return MasterWeights(SGD(model.parameters(), lr=LEARNING_RATE))


def with_lightning(model: Net, _: Path) -> MasterWeights:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.plugins import MixedPrecision

    masters = masters_of(model)

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Tensor, _: int) -> Tensor:
            return model(batch)["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> Any:
            return masters

    fp16 = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
    trainer = Trainer(plugins=fp16, gradient_clip_val=MAX_NORM, max_epochs=1, **quiet.LIGHTNING)
    trainer.fit(Module(), DataLoader(torch.ones(4 * ROWS, 8), batch_size=ROWS))  # type: ignore[arg-type]
    return masters


def with_transformers(model: Net, folder: Path) -> MasterWeights:
    from transformers import Trainer

    from tests.integrations.transformers_runs import HalfOnCpu, arguments

    class HalfTrainer(HalfOnCpu, Trainer):
        pass

    masters = masters_of(model)

    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(masters.master_parameters(), MAX_NORM)

    masters.register_step_pre_hook(clip)
    args = arguments(folder, max_grad_norm=0.0, lr_scheduler_type="constant", warmup_steps=0)
    data = [{"x": torch.ones(8)} for _ in range(4 * ROWS)]
    HalfTrainer(model, args, train_dataset=data, optimizers=(masters, None)).train()
    return masters


def with_accelerate(model: Net, _: Path) -> MasterWeights:
    from tests.integrations.accelerate_runs import accelerator

    hub, masters = accelerator(), masters_of(model)
    prepared, optimizer = hub.prepare(model, masters)
    for batch in itertools.repeat(torch.ones(ROWS, 8), 4):
        hub.backward(prepared(batch)["loss"])
        hub.clip_grad_norm_(masters.master_parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
    return masters


@pytest.mark.parametrize("train", [with_lightning, with_transformers, with_accelerate])
def test_four_small_clipped_updates_are_all_kept(train: Any) -> None:
    model = Net()
    with tempfile.TemporaryDirectory() as folder:
        masters = train(model, Path(folder))
    (master,) = masters.master_parameters()
    assert model.layer.weight.dtype is torch.float16
    assert master.dtype is torch.float32
    # Each update is 1/8 of what clipping leaves, far below the step of half next to 1.
    expected = 1.0 - 4 * LEARNING_RATE * MAX_NORM / 8
    torch.testing.assert_close(master.detach(), torch.full((8, 8), expected), rtol=1e-6, atol=0)


def test_the_page_says_how() -> None:
    page = (ROOT / "docs/how-to/fp16-weights.md").read_text()
    for framework in ("Lightning", "transformers", "Accelerate"):
        assert f"\n| {framework} |" in page
