"""Train with Lightning and Hydra: ``python train.py trainer=fp16_safe [key=value ...]``."""

import logging
import warnings

import hydra
import torch
from lightning.pytorch import LightningModule, seed_everything
from lightning.pytorch.loggers import WandbLogger
from model import DBNet

from workload import evaluate, loss_fn, make_batches

warnings.filterwarnings("ignore", module="lightning")  # its advice about data loaders
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class TextDetector(DBNet, LightningModule):
    """DBNet as Lightning wants it; its parameters keep their names, so an incident can be replayed."""

    def __init__(self, variant, lr, steps):
        super().__init__(variant=variant)
        self.lr, self.steps = lr, steps

    def training_step(self, batch):
        loss = loss_fn(self, batch)
        self.log("train/loss", loss, on_step=True, on_epoch=False)
        return loss

    def on_before_optimizer_step(self, *_):
        """Log the norm of the gradients, unscaled and not yet clipped, in every precision."""
        norm = torch.nn.utils.get_total_norm(p.grad for p in self.parameters())
        self.log("grad/norm", norm, on_step=True, on_epoch=False)

    def on_train_end(self):
        self.eval()
        scores = {f"val/{name}": value for name, value in evaluate(self).items()}
        self.logger.log_metrics(scores, self.trainer.global_step)
        self.scores = scores

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, self.steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def train(config):
    """Run one configuration; return its scores, the loss scale at its end, and the steps applied."""
    seed_everything(config.seed, verbose=False)
    logger = WandbLogger(
        name=config.exp_name,
        project="dbnet_ocr",
        group=config.exp_name,
        save_dir=config.out,
        offline=True,
        config={"seed": config.seed, "variant": config.variant},
    )
    quiet = dict.fromkeys(
        ("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = hydra.utils.instantiate(
        config.trainer, logger=logger, max_steps=config.steps, log_every_n_steps=1, **quiet
    )
    module = TextDetector(config.variant, config.lr, config.steps)
    trainer.fit(module, torch.utils.data.DataLoader(make_batches(config.seed), batch_size=None))
    logger.experiment.finish()
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    applied = max(int(state["step"]) for state in trainer.optimizers[0].state.values())
    return module.scores | {"scale": scaler.get_scale() if scaler else 1.0, "applied": applied}


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config):
    result = train(config)
    print(", ".join(f"{name} {value:.4g}" for name, value in result.items()))


if __name__ == "__main__":
    main()
