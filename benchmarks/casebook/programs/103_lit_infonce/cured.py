import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.plugins.precision import MixedPrecision


class SimCLR(pl.LightningModule):
    def __init__(self, tau=0.07):
        super().__init__()
        self.tau = tau
        self.encoder = torch.nn.Sequential(
            torch.nn.Linear(48, 96), torch.nn.ReLU(), torch.nn.Linear(96, 24)
        )

    def nce(self, a, b):
        sim = a @ b.t()
        return F.cross_entropy(sim / self.tau, torch.arange(len(sim)))

    def training_step(self, x, idx):
        a = F.normalize(self.encoder(x + 0.3 * torch.randn_like(x)), dim=-1)
        b = F.normalize(self.encoder(x + 0.3 * torch.randn_like(x)), dim=-1)
        loss = self.nce(a, b)
        if idx % 5 == 0:
            print(f"[{self.current_epoch}:{idx}] nce loss = {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


pl.seed_everything(1)
data = torch.randn(960, 48)
loader = torch.utils.data.DataLoader(data, batch_size=48, shuffle=True)
amp = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
pl.Trainer(
    max_epochs=3, accelerator="cpu", plugins=[amp], logger=False,
    enable_checkpointing=False, enable_progress_bar=False,
).fit(SimCLR(), loader)
