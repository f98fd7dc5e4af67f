import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Decorrelated(nn.Module):
    """Barlow-style redundancy term on top of a classifier."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 24), nn.ReLU())
        self.head = nn.Linear(24, 3)
        with torch.no_grad():
            self.body[0].bias[5] = -50.0  # a unit that never fires

    def forward(self, x=None, labels=None):
        h = self.body(x)
        z = (h - h.mean(0)) / h.std(0)
        corr = z.T @ z / len(z)
        off = corr - torch.eye(corr.shape[0])
        loss = nn.functional.cross_entropy(self.head(h), labels) + 1e-3 * off.pow(2).sum()
        return {"loss": loss, "logits": self.head(h)}


torch.manual_seed(0)
rows = []
for _ in range(128):
    x = torch.randn(16)
    rows.append({"x": x, "labels": (x[:3]).argmax()})
args = TrainingArguments(
    "out", max_steps=12, per_device_train_batch_size=16, learning_rate=1e-3, report_to=[], save_strategy="no",
    disable_tqdm=True, use_cpu=True, bf16=True, logging_steps=4,
)
Trainer(Decorrelated(), args, train_dataset=rows).train()
