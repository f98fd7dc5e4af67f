import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Assay(nn.Module):
    """Several measurements per compound, many of them missing."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x, labels=None):
        with torch.autocast("cpu", dtype=torch.float16):
            out = self.net(x)
        known = ~labels.isnan()
        diff = out.float() - torch.where(known, labels, torch.zeros_like(labels))
        loss = (diff.pow(2) * known).sum() / known.sum().clamp(min=1)
        return {"loss": loss, "logits": out}


torch.manual_seed(0)
w = torch.randn(12, 4)
rows = []
for _ in range(960):
    x = torch.randn(12)
    y = torch.tanh(x @ w)
    y[torch.rand(4) < 0.6] = float("nan")
    rows.append({"x": x, "labels": y})
args = TrainingArguments(
    "o", num_train_epochs=3, per_device_train_batch_size=16, learning_rate=5e-3, logging_steps=15,
    report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
)
Trainer(Assay(), args, train_dataset=rows).train()
