"""SimCLR-like pretraining on vectors, written from the formula in the paper."""
import lightning as L
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class SimCLR(L.LightningModule):
    def __init__(self, dim=32, out=16, final_temperature=0.07):
        super().__init__()
        self.final_temperature = final_temperature
        self.encoder = nn.Sequential(nn.Linear(dim, 64), nn.Tanh(), nn.Linear(64, out))

    @property
    def temperature(self):
        return max(self.final_temperature, 0.5 * 0.97 ** self.global_step)

    def augment(self, x):
        return x + 0.8 * torch.randn_like(x)

    def info_nce(self, z1, z2):
        sim = F.normalize(z1, dim=1) @ F.normalize(z2, dim=1).t()
        exp_sim = torch.exp(sim / self.temperature)
        positives = exp_sim.diagonal()
        return -torch.log(positives / exp_sim.sum(dim=1)).mean()

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = self.info_nce(self.encoder(self.augment(x)), self.encoder(self.augment(x)))
        if self.global_step % 5 == 0 or not loss.isfinite():
            print(f"step {self.global_step} loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


class LossIsNan(L.Callback):
    bad = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if not torch.isfinite(outputs["loss"]):
            self.bad += 1
        if self.bad > 5:
            trainer.should_stop = True


def main():
    L.seed_everything(33)
    centers = torch.randn(8, 32) * 0.5
    x = centers.repeat_interleave(40, dim=0) + 0.3 * torch.randn(320, 32)
    amp = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=1.0))
    trainer = L.Trainer(accelerator="cpu", plugins=[amp], max_epochs=10, logger=False, callbacks=[LossIsNan()],
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(SimCLR(), DataLoader(TensorDataset(x), batch_size=16, shuffle=True, drop_last=True))


if __name__ == "__main__":
    main()
