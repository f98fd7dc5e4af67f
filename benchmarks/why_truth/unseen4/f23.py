"""Next-item recommendation with a Trainer; a collator packs user history and item ids into one batch."""
import argparse

import torch
import torch.nn as nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

N_ITEMS = 6000


class Sessions(Dataset):
    """An item belongs to one of 12 genres (id modulo 12); users stay inside a genre."""
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        genre = torch.randint(0, 12, (n, 1), generator=g)
        self.hist = torch.randint(170, N_ITEMS // 12, (n, 6), generator=g) * 12 + genre
        noise = torch.rand(n, 6, generator=g) < 0.2
        self.hist = torch.where(noise, torch.randint(2040, N_ITEMS, (n, 6), generator=g), self.hist)
        self.dwell = torch.rand(n, 6, generator=g)
        self.label = genre.squeeze(1)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return {"hist": self.hist[i], "dwell": self.dwell[i], "labels": self.label[i]}


class Collator:
    """Sends one tensor per batch to the device instead of many small ones."""
    def __init__(self, dtype):
        self.dtype = dtype

    def __call__(self, rows):
        hist = torch.stack([r["hist"] for r in rows]).to(self.dtype)
        dwell = torch.stack([r["dwell"] for r in rows]).to(self.dtype)
        return {"features": torch.stack([hist, dwell], dim=-1), "labels": torch.stack([r["labels"] for r in rows])}


class SessionModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.emb = nn.Embedding(N_ITEMS, dim)
        self.gate = nn.Linear(1, 1)
        self.head = nn.Linear(dim, 12)

    def forward(self, features, labels=None):
        items, dwell = features[..., 0].long(), features[..., 1:].float()
        items = items.clamp(max=N_ITEMS - 1)
        h = (self.emb(items) * torch.sigmoid(self.gate(dwell))).mean(1)
        logits = self.head(h)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def accuracy(p):
    return {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch-dtype", default="float16")
    ap.add_argument("--epochs", type=int, default=4)
    args = ap.parse_args()
    torch.manual_seed(0)
    targs = TrainingArguments(output_dir="out", num_train_epochs=args.epochs, per_device_train_batch_size=128,
                              per_device_eval_batch_size=512, learning_rate=3e-2, weight_decay=0.0, logging_steps=32,
                              save_strategy="no", report_to=[], disable_tqdm=True, remove_unused_columns=False,
                              use_cpu=not torch.cuda.is_available())
    trainer = Trainer(model=SessionModel(), args=targs, train_dataset=Sessions(8000, 0), eval_dataset=Sessions(1000, 1),
                      data_collator=Collator(getattr(torch, args.batch_dtype)), compute_metrics=accuracy)
    trainer.train()
    print(f"eval_accuracy {trainer.evaluate()['eval_accuracy']:.3f}")


if __name__ == "__main__":
    main()
