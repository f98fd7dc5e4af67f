"""Run every preset in the named frameworks as its printed text says, and print JSON lines.

A process of its own: frameworks keep state in the process and in its environment. The task has a gradient
whose norm is known beforehand, so that clipping can be seen in the step that the optimizer really takes.
A diff is applied to a stock script, which then trains.

Accelerate, and so transformers, leaves FP16 out on a CPU. There each preset is run twice: as printed, to see
what becomes of it, and with what a GPU would have switched on.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import tempfile
import warnings
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from halfguard.guard.config import GuardConfig, preset_names
from halfguard.guard.presets.frameworks import FRAMEWORKS, framework_text
from tests.support import quiet
from tests.support.docs import apply_diff

WITHOUT_FP16_ON_A_CPU = ("transformers", "accelerate")
WIDTH, ROWS, BATCHES = 256, 4, 4
UNIT = math.sqrt(WIDTH * WIDTH + WIDTH)  # the norm of a gradient of ones
ADDED_LINES = 3
MIXED = [n for n in preset_names() if GuardConfig.load(n).precision != "fp16-weights"]
ALL = [(framework, name) for framework in FRAMEWORKS for name in MIXED] + [("plain", "native_fp16")]

STOCK_TRAINER = """
from transformers import Trainer, TrainingArguments
args = TrainingArguments(**quiet, **settings)
trainer = Trainer(model, args, train_dataset=data)
trainer.optimizer = optimizer
trainer.train()
guard = trainer.guard
"""
STOCK_LIGHTNING = """
trainer = Trainer(precision="16-mixed")
trainer.fit(module, loader)
guard = trainer.precision_plugin.guard
"""
STOCK_LOOP = """
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps={accumulate})
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    with accelerator.accumulate(model):
        loss = compute_loss(model, batch)
        accelerator.backward(loss)
{clip}        optimizer.step()
        optimizer.zero_grad()
guard = guard.hosted
"""
CLIP = """\
        if accelerator.sync_gradients:  # a total norm of {norm}; a larger value clips less
            accelerator.clip_grad_norm_(model.parameters(), {norm})
"""


@dataclass
class Seen:
    """What the framework did, recorded in the model, the optimizer and the scaler."""

    framework: str
    preset: str
    as_printed: bool = False  # nothing was switched on that the framework leaves out on a CPU
    forward: list[str] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)  # of the gradients at every optimizer step
    weights: str = ""
    updated: str = ""  # dtype of what the optimizer updates
    scale: dict[str, float] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)  # that the guard had
    journal: bool = False  # was written where the text says


def wanted_norm(config: GuardConfig) -> float:
    """Return three times the clipping norm; the guard skips only larger gradients."""
    return 3.0 * (config.clip.max_norm if config.clip else 1.0)


class Net(nn.Module):
    """Gives every weight the same gradient."""

    def __init__(self, seen: Seen, norm: float, *, half: bool) -> None:
        super().__init__()
        self.seen, self.slope = seen, norm / UNIT
        self.layer = nn.Linear(WIDTH, WIDTH)
        if half:
            self.layer.half()

    def forward(self, x: Tensor, **_: Any) -> dict[str, Tensor]:
        out = self.layer(x)
        self.seen.forward.append(str(out.dtype).removeprefix("torch."))
        return {"loss": out.float().mean(0).sum() * self.slope}


def compute_loss(model: Any, batch: Any) -> Tensor:
    return model(batch)["loss"]


def watched(model: Net, seen: Seen) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def look(chosen: torch.optim.Optimizer, *_: Any) -> None:
        params = [p for group in chosen.param_groups for p in group["params"]]
        grads = [p.grad for p in params if p.grad is not None]
        seen.norms.append(float(torch.nn.utils.get_total_norm(grads)))
        seen.updated = str(params[0].dtype).removeprefix("torch.")
        seen.weights = str(model.layer.weight.dtype).removeprefix("torch.")

    optimizer.register_step_pre_hook(look)
    return optimizer


# -- each framework: run the text, return the guard


def plain(text: str, model: Net, seen: Seen) -> Any:
    return run(text, model, seen, loss_fn=compute_loss)


def lightning(text: str, model: Net, seen: Seen) -> Any:
    from lightning.pytorch import Trainer

    program = apply_diff(text[text.index("@@\n") :], STOCK_LIGHTNING, added=ADDED_LINES)
    return run(
        program,
        model,
        seen,
        Trainer=partial(Trainer, max_epochs=1, **quiet.LIGHTNING),
        module=module_of(model, seen),
    )


def hydra(text: str, model: Net, seen: Seen) -> Any:
    from hydra import compose, initialize_config_dir
    from hydra.utils import instantiate

    with tempfile.TemporaryDirectory() as folder:
        group = Path(folder) / "trainer"
        group.mkdir()
        (group / f"{seen.preset}.yaml").write_text(text)
        (Path(folder) / "config.yaml").write_text(f"defaults:\n  - trainer: {seen.preset}\n")
        with initialize_config_dir(folder, version_base=None):
            config = compose("config", overrides=["trainer.accelerator=cpu"])
    trainer = instantiate(config.trainer, max_epochs=1, **quiet.LIGHTNING)
    trainer.fit(module_of(model, seen), batches())
    return trainer.precision_plugin.guard


def module_of(model: Net, seen: Seen) -> Any:
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def training_step(self, batch: Tensor, _: int) -> Tensor:
            return compute_loss(self.net, batch)

        def configure_optimizers(self) -> Any:
            return watched(model, seen)

    return Module()


def transformers(text: str, model: Net, seen: Seen) -> Any:
    from transformers import HfArgumentParser, TrainingArguments

    diff, _, settings = text[text.index("@@\n") :].partition("\n# The training arguments")
    Path("settings.yaml").write_text(settings.partition("---\n")[2])
    parser: Any = HfArgumentParser(TrainingArguments)  # type: ignore[arg-type]
    (read,) = parser.parse_yaml_file("settings.yaml")
    names = ("fp16", "max_grad_norm", "gradient_accumulation_steps")
    how = {"num_train_epochs": 1, "per_device_train_batch_size": ROWS}
    return run(
        apply_diff(diff, STOCK_TRAINER, added=ADDED_LINES),
        model,
        seen,
        quiet=quiet.transformers("out") | how,
        settings={name: getattr(read, name) for name in names},
        data=[{"x": torch.ones(WIDTH)} for _ in range(ROWS * BATCHES)],
    )


def accelerate(text: str, model: Net, seen: Seen) -> Any:
    config = GuardConfig.load(seen.preset)
    clip = "" if config.clip is None else CLIP.format(norm=config.clip.max_norm)
    stock = STOCK_LOOP.format(accumulate=config.accumulate, clip=clip)
    program = apply_diff(text[text.index("@@\n") :], stock, added=ADDED_LINES)
    return run(program, model, seen, compute_loss=compute_loss)


def run(program: str, model: Net, seen: Seen, **names: Any) -> Any:
    """Run a program that finds model, optimizer and loader; return its guard."""
    given = {"model": model, "optimizer": watched(model, seen), "loader": batches(), **names}
    exec(compile(program, "printed", "exec"), given)
    return given["guard"]


def batches() -> Any:
    return DataLoader(torch.ones(ROWS * BATCHES, WIDTH), batch_size=ROWS)  # type: ignore[arg-type]


# -- FP16 on a CPU, and one run after another


def lower_on_a_cpu() -> Any:
    """Let Accelerate lower models, as on a GPU; return its own way to make an accelerator."""
    from accelerate import Accelerator

    make = Accelerator.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self.native_amp = True

    Accelerator.__init__ = made
    return make


def observe(framework: str, name: str, as_printed: bool) -> Seen:
    config, seen = GuardConfig.load(name), Seen(framework, name, as_printed)
    torch.manual_seed(0)
    model = Net(seen, wanted_norm(config), half=config.precision == "fp16-weights")
    guard = globals()[framework](framework_text(name, framework), model, seen)
    scaler = guard.scaler
    seen.scale = {
        "init": scaler.get_scale(),
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
        "floor": scaler._floor,
        "ceiling": scaler._ceiling,
    }
    seen.config = guard.config.model_dump(mode="json")
    guard.close()
    seen.journal = Path("runs/a/steps.jsonl").exists()
    return seen


def main(frameworks: list[str]) -> None:
    warnings.simplefilter("ignore")
    os.environ["ACCELERATE_USE_CPU"] = "true"
    for (framework, name), as_printed in itertools.product(ALL, (False, True)):
        by_accelerate = framework in WITHOUT_FP16_ON_A_CPU
        if framework not in frameworks or (as_printed and not by_accelerate):
            continue
        own = lower_on_a_cpu() if by_accelerate and not as_printed else None
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            print("SEEN " + json.dumps(asdict(observe(framework, name, as_printed))), flush=True)
            os.chdir("/")
        if by_accelerate:
            from accelerate import Accelerator
            from accelerate.state import AcceleratorState

            AcceleratorState._reset_state(reset_partial_state=True)
            Accelerator.__init__ = own or Accelerator.__init__


if __name__ == "__main__":
    main(sys.argv[1:])
