"""Lightning with a curriculum: the task gets harder in stages, so the loss jumps up on purpose; FP32 weight average."""
import copy

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

STAGES = (1.0, 2.0, 4.0)
BATCHES = 40


class Stage(IterableDataset):
    def __init__(self):
        self.level = 0

    def __iter__(self):
        amplitude = STAGES[self.level]
        for _ in range(BATCHES * 32):
            x = torch.rand(1) * 2 - 1
            yield torch.cat([x, torch.tensor([amplitude / 4])]), amplitude * torch.sin(3 * x)


class Curriculum(L.LightningModule):
    def __init__(self, data, decay=0.95):
        super().__init__()
        self.data, self.decay = data, decay
        self.net = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 1))
        self.average = copy.deepcopy(self.net).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self.net(x).float(), y)
        if batch_idx % 8 == 0:
            with torch.no_grad():
                averaged = F.mse_loss(self.average(x).float(), y)
            print(f"stage {self.data.level} batch {batch_idx:2d} loss {loss.item():.4f} averaged {averaged.item():.4f}")
        return loss

    def on_train_batch_end(self, *unused):
        with torch.no_grad():
            for a, p in zip(self.average.parameters(), self.net.parameters()):
                a.lerp_(p, 1 - self.decay)

    def on_train_epoch_end(self):
        self.data.level = min(self.data.level + 1, len(STAGES) - 1)

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=2e-2)


if __name__ == "__main__":
    L.seed_everything(15)
    stage = Stage()
    trainer = L.Trainer(
        max_epochs=5, accelerator="cpu", precision="bf16-mixed", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Curriculum(stage), DataLoader(stage, batch_size=32))
