"""Tabular classifier under the Hugging Face Trainer, smoothed labels written by hand."""
import os
import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

torch.manual_seed(100)
WORK = tempfile.mkdtemp()


class Table(torch.utils.data.Dataset):
    def __init__(self, n=512, features=10):
        g = torch.Generator().manual_seed(101)
        self.x = torch.randn(n, features, generator=g)
        self.y = (self.x[:, :3].argmax(dim=1)).long()
        self.x[::97] *= 1.5
        self.x[300] *= 25.0  # amounts in cents instead of euros

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"features": self.x[i], "labels": self.y[i]}


class TabularNet(nn.Module):
    def __init__(self, smoothing=0.05):
        super().__init__()
        self.smoothing = smoothing
        self.layers = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))

    def smoothed_loss(self, logits, labels):
        log_probs = torch.softmax(logits, dim=-1).log()
        nll = -log_probs.gather(1, labels[:, None]).squeeze(1)
        uniform = -log_probs.mean(dim=1)
        return ((1 - self.smoothing) * nll + self.smoothing * uniform).mean()

    def forward(self, features, labels=None):
        with torch.autocast("cpu", dtype=torch.float16):
            logits = self.layers(features)
            loss = self.smoothed_loss(logits, labels) if labels is not None else None
        return {"loss": loss, "logits": logits}


args = TrainingArguments(
    output_dir=WORK,
    num_train_epochs=2,
    per_device_train_batch_size=8,
    learning_rate=4e-3,
    lr_scheduler_type="linear",
    max_grad_norm=1.0,
    logging_steps=4,
    logging_nan_inf_filter=False,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
    seed=3,
)

trainer = Trainer(model=TabularNet(), args=args, train_dataset=Table())
try:
    result = trainer.train()
    print("final loss", result.training_loss)
finally:
    torch.save(trainer.model.state_dict(), os.path.join(WORK, "last.pt"))
