"""Sentiment of threads: attention over the words of each comment, then over comments."""
import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader

PAD = 0


class Threads(torch.utils.data.Dataset):
    def __init__(self, n=320, comments=3, words=7):
        g = torch.Generator().manual_seed(2)
        self.ids = torch.randint(1, 50, (n, comments, words), generator=g)
        lengths = torch.randint(1, words + 1, (n, comments, 1), generator=g)
        self.ids[torch.arange(words).expand_as(self.ids) >= lengths] = PAD
        self.labels = (self.ids == 7).flatten(1).any(1).long()
        self.ids[208, 2] = PAD  # deleted comment

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"ids": self.ids[i], "label": self.labels[i]}


class WordAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query = nn.Parameter(torch.randn(dim) * 0.1)
        self.key = nn.Linear(dim, dim)

    def forward(self, x, mask):
        scores = torch.tanh(self.key(x)) @ self.query
        attn = F.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
        return torch.einsum("bcw,bcwd->bcd", attn, x)


class HierarchicalClassifier(L.LightningModule):
    def __init__(self, dim=24):
        super().__init__()
        self.embed = nn.Embedding(50, dim, padding_idx=PAD)
        self.attention = WordAttention(dim)
        self.out = nn.Linear(dim, 2)

    def forward(self, ids):
        comments = self.attention(self.embed(ids), ids != PAD)
        return self.out(comments.mean(dim=1))

    def training_step(self, batch, batch_idx):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self(batch["ids"])
        return F.cross_entropy(logits.float(), batch["label"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class PrintLoss(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx % 4 == 0:
            print(trainer.global_step, outputs["loss"].item())


L.seed_everything(8)
trainer = L.Trainer(accelerator="cpu", max_steps=40, logger=False, callbacks=[PrintLoss()],
                    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(HierarchicalClassifier(), DataLoader(Threads(), batch_size=16))
