"""Lightning classifier, bf16 autocast in the module, nan_to_num as a belt-and-braces guard."""
import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

L.seed_everything(9, verbose=False)


def events(n):
    rate = torch.rand(n, 10) * 5
    counts = torch.poisson(rate)
    y = (counts[:, 0] + counts[:, 1] > counts[:, 2] + counts[:, 3]).long()
    return counts, y


class EventNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(10, 48)
        self.val = nn.Linear(10, 48)
        self.out = nn.Linear(48, 2)

    def forward(self, x):
        x = torch.log(x.clamp(min=1e-6)).clamp(min=-3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = torch.sigmoid(self.gate(x)) * self.val(x)
            h = h / (h.float().norm(dim=1, keepdim=True) + 1e-6)
            h = torch.nan_to_num(h, nan=0.0, posinf=1.0, neginf=-1.0)
            z = self.out(h * 8)
        return z.float()

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        if not torch.isfinite(loss):
            return None
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-3, eps=1e-8)


model = EventNet()
trainer = L.Trainer(max_epochs=6, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=0.5)
trainer.fit(model, DataLoader(TensorDataset(*events(4000)), batch_size=100, shuffle=True))
xv, yv = events(1000)
model.eval()
with torch.no_grad():
    acc = (model(xv).argmax(1) == yv).float().mean().item()
print(f"val_acc {acc:.4f}")
