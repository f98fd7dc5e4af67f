"""Load every preset from its printed text in the named frameworks, run it, and print JSON lines.

A process of its own: frameworks keep state in the process and in its environment. The task has a gradient
whose norm is known beforehand, so that clipping can be seen in the step that the optimizer really takes.

Accelerate, and so transformers, leaves FP16 out on a CPU. There each preset is run twice: as printed, to see
what becomes of it, and with what a GPU would have switched on.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import tempfile
import types
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from halfguard.guard.config import GuardConfig, preset_names
from halfguard.guard.presets.frameworks import framework_text
from halfguard.precision import MasterWeights

WITHOUT_FP16_ON_A_CPU = ("transformers", "accelerate")
WIDTH, ROWS, BATCHES = 256, 4, 4
UNIT = math.sqrt(WIDTH * WIDTH + WIDTH)  # the norm of a gradient of ones


@dataclass
class Seen:
    """What the framework did, recorded in the model, the optimizer and the scaler."""

    framework: str
    preset: str
    as_printed: bool = False  # nothing was switched on that the framework leaves out on a CPU
    setting: str = ""  # the precision that the framework says it has
    forward: list[str] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)  # of the gradients at every optimizer step
    weights: str = ""
    updated: str = ""  # dtype of what the optimizer updates
    scale: dict[str, float] = field(default_factory=dict)
    # By what a machine has: torch's name of every accelerator that Lightning may be told.
    devices: dict[str, dict[str, str]] = field(default_factory=dict)


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


def loss_fn(model: Any, batch: Any) -> Tensor:
    loss: Tensor = model(batch)["loss"]
    return loss


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


def note_scale(seen: Seen, scaler: Any | None) -> None:
    if scaler is None:
        return
    seen.scale = {
        "init": scaler.get_scale(),
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
    }
    for name in ("floor", "ceiling"):
        if hasattr(scaler, f"_{name}"):
            seen.scale[name] = getattr(scaler, f"_{name}")


def plain(text: str, model: Net, seen: Seen, _: bool) -> None:
    program = loaded(text)
    guard = program.train(model, watched(model, seen), batches(), loss_fn)
    note_scale(seen, guard.scaler)


def lightning(text: str, model: Net, seen: Seen, half: bool) -> None:
    program = loaded(text)
    seen.devices = devices(program) if half else {}
    with tempfile.TemporaryDirectory() as folder:
        kept = {} if half else {"run_dir": folder}
        trainer = program.make_trainer("auto", **kept, **QUIET)
        fit(trainer, model, seen, program.make_optimizer if half else lambda optimizer: optimizer)


def devices(program: Any) -> dict[str, dict[str, str]]:
    words = ("auto", "gpu", "cpu", "cuda", "mps")
    found = {}
    for there in ("cpu", "cuda", "mps"):
        with (
            patch.object(torch.cuda, "is_available", return_value=there == "cuda"),
            patch.object(torch.backends.mps, "is_available", return_value=there == "mps"),
        ):
            found[there] = {word: program.device_of(word) for word in words}
    return found


def hydra(text: str, model: Net, seen: Seen, half: bool) -> None:
    from hydra import compose, initialize_config_dir
    from hydra.utils import instantiate

    with tempfile.TemporaryDirectory() as folder:
        group = Path(folder) / "trainer"
        group.mkdir()
        (group / f"{seen.preset}.yaml").write_text(text)
        (Path(folder) / "config.yaml").write_text(f"defaults:\n  - trainer: {seen.preset}\n")
        with initialize_config_dir(folder, version_base=None):
            kept = [] if half else [f"trainer.plugins.0.run_dir={folder}"]
            config = compose("config", overrides=["trainer.accelerator=cpu", *kept])
        trainer = instantiate(config.trainer, **QUIET)
        fit(trainer, model, seen, MasterWeights if half else lambda optimizer: optimizer)


QUIET = {
    "max_epochs": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def fit(trainer: Any, model: Net, seen: Seen, wrap: Callable[[Any], Any]) -> None:
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def training_step(self, batch: Tensor, _: int) -> Tensor:
            return loss_fn(self.net, batch)

        def configure_optimizers(self) -> Any:
            return wrap(watched(model, seen))

    seen.setting = trainer.precision
    trainer.fit(Module(), batches())
    note_scale(seen, trainer.precision_plugin.scaler)  # a guard has one once it trains


def transformers(text: str, model: Net, seen: Seen, half: bool) -> None:
    program = loaded(text)
    with tempfile.TemporaryDirectory() as folder:
        args = program.make_arguments(
            folder,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            num_train_epochs=1,
            per_device_train_batch_size=ROWS,
        )
        optimizer = watched(model, seen)
        data = [{"x": torch.ones(WIDTH)} for _ in range(ROWS * BATCHES)]
        trainer = (
            program.make_trainer(model, optimizer, args, train_dataset=data)
            if half
            else program.make_trainer(model, args, optimizers=(optimizer, None), train_dataset=data)
        )
        accelerator = trainer.accelerator
        if not seen.as_printed:
            accelerator.native_amp = True  # as on a GPU
            program.set_scaler(accelerator)
        note_scale(seen, accelerator.scaler)
        trainer.train()


def accelerate(text: str, model: Net, seen: Seen, _: bool) -> None:
    program = loaded(text)
    accelerator = program.make_accelerator(cpu=True)
    if not seen.as_printed:  # as on a GPU, with the scaler that it makes from the printed handler
        accelerator.native_amp = True
        settings = accelerator.scaler_handler.to_kwargs()
        accelerator.scaler = torch.amp.GradScaler("cpu", **settings)
    note_scale(seen, accelerator.scaler)
    program.train(accelerator, model, watched(model, seen), batches(), loss_fn)


def batches() -> Any:
    return DataLoader(torch.ones(ROWS * BATCHES, WIDTH), batch_size=ROWS)  # type: ignore[arg-type]


def loaded(text: str) -> Any:
    module = types.ModuleType("printed")
    exec(compile(text, "printed", "exec"), module.__dict__)
    return module


def main(frameworks: list[str]) -> None:
    warnings.simplefilter("ignore")
    for framework, name, as_printed in itertools.product(frameworks, preset_names(), (False, True)):
        if as_printed and framework not in WITHOUT_FP16_ON_A_CPU:
            continue
        config, seen = GuardConfig.load(name), Seen(framework, name, as_printed)
        half = config.precision == "fp16-weights"
        torch.manual_seed(0)
        model = Net(seen, wanted_norm(config), half=half)
        globals()[framework](framework_text(name, framework), model, seen, half)
        print("SEEN " + json.dumps(asdict(seen)), flush=True)
        forget()


def forget() -> None:
    """Reset what Accelerate keeps in the process, so that the next preset starts a new run."""
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState  # type: ignore[import-untyped]

        AcceleratorState._reset_state(reset_partial_state=True)


if __name__ == "__main__":
    main(sys.argv[1:])
