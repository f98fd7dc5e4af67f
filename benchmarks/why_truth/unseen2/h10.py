"""Lightning, bf16-mixed: predict click counts; inputs go up to millions and are log-transformed."""
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def table(n):
    g = torch.Generator().manual_seed(10)
    views = torch.exp(4 + 3 * torch.randn(n, 3, generator=g)).round()
    share = torch.sigmoid(torch.randn(n, 1, generator=g) - 2)
    clicks = (views.sum(1, keepdim=True) * share).round()
    return TensorDataset(torch.cat([views, share], 1), clicks)


class Clicks(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x):
        views, share = x[:, :3], x[:, 3:]
        features = torch.cat([torch.log1p(views) / 4.0 - 1.0, torch.logit(share, eps=1e-4) / 2 + 1.0], 1)
        return self.net(features).float()

    def training_step(self, batch, batch_idx):
        x, clicks = batch
        loss = F.smooth_l1_loss(self(x), torch.log1p(clicks))
        if self.global_step % 10 == 0:
            print(f"step {self.global_step:3d} loss {loss.item():.4f} largest count {clicks.max().item():.0f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    L.seed_everything(10)
    trainer = L.Trainer(
        max_epochs=4, accelerator="cpu", precision="bf16-mixed", gradient_clip_val=1.0, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Clicks(), DataLoader(table(960), batch_size=32, shuffle=True))
