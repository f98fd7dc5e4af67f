"""Masked-token pre-training of a tiny encoder on synthetic 'log lines' with the HF Trainer."""
import os
os.environ.setdefault("WANDB_DISABLED", "true")

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed

VOCAB, MASK_ID, PAD_ID = 32, 1, 0
MAX_LEN = 36


class LogLines(Dataset):
    """first order Markov chains with 2 different templates"""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        trans = np.random.default_rng(99).dirichlet(np.full(VOCAB - 2, 0.02), size=(2, VOCAB - 2))
        self.items = []
        for _ in range(n):
            k = rng.integers(2)
            length = int(rng.integers(20, 37))
            tok = [int(rng.integers(VOCAB - 2))]
            for _ in range(length - 1):
                tok.append(int(rng.choice(VOCAB - 2, p=trans[k, tok[-1]])))
            self.items.append(torch.tensor(tok) + 2)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return {"input_ids": self.items[i]}


class MLMCollator:
    def __init__(self, prob=0.15, seed=0):
        self.prob = prob
        self.gen = torch.Generator().manual_seed(seed)

    def __call__(self, feats):
        ids = torch.full((len(feats), MAX_LEN), PAD_ID)
        for i, f in enumerate(feats):
            ids[i, : len(f["input_ids"])] = f["input_ids"]
        pick = (torch.rand(ids.shape, generator=self.gen) < self.prob) & (ids != PAD_ID)
        labels = ids.masked_fill(~pick, -100)
        return {"input_ids": ids.masked_fill(pick, MASK_ID), "labels": labels}


class TinyEncoder(nn.Module):
    def __init__(self, d=32, heads=4, layers=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d, padding_idx=PAD_ID)
        self.pos = nn.Embedding(MAX_LEN, d)
        layer = nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(d, VOCAB)

    def forward(self, input_ids, labels=None):
        h = self.tok(input_ids) + self.pos.weight[: input_ids.size(1)]
        h = self.enc(h, src_key_padding_mask=input_ids == PAD_ID)
        return {"logits": self.out(h)}


class MLMTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        out = model(input_ids=inputs["input_ids"])
        ce = F.cross_entropy(out["logits"].float().transpose(1, 2), labels.clamp(min=0), reduction="none")
        mask = (labels != -100).float()
        per_line = (ce * mask).sum(dim=1) / mask.sum(dim=1)
        loss = per_line.mean()
        return (loss, out) if return_outputs else loss


def masked_accuracy(model, data, collate):
    model.eval()
    hit = tot = 0
    with torch.no_grad():
        for i in range(0, len(data), 32):
            b = collate([data[j] for j in range(i, min(i + 32, len(data)))])
            pred = model(b["input_ids"])["logits"].argmax(-1)
            m = b["labels"] != -100
            hit += (pred[m] == b["labels"][m]).sum().item()
            tot += m.sum().item()
    return hit / tot


def main():
    set_seed(11)
    train, val = LogLines(240, 1), LogLines(128, 2)
    args = TrainingArguments(
        output_dir="out", max_steps=80, per_device_train_batch_size=8,
        learning_rate=5e-3, warmup_steps=20, bf16=True, use_cpu=True, logging_steps=6,
        save_strategy="no", report_to=[], remove_unused_columns=False, disable_tqdm=True, seed=11,
    )
    trainer = MLMTrainer(model=TinyEncoder(), args=args, train_dataset=train, data_collator=MLMCollator())
    trainer.train()
    acc = masked_accuracy(trainer.model, val, MLMCollator(seed=5))
    print(f"final masked accuracy {acc:.4f}")


if __name__ == "__main__":
    main()
