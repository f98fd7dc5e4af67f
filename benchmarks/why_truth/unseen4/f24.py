"""Ticket routing: subject and optional comment are encoded separately, trained with the transformers Trainer."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments


class Tickets(Dataset):
    """Tokens 1..9 name the queue; about a third of tickets come without a comment."""
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 3, (n,), generator=g)
        self.subject = torch.randint(10, 50, (n, 6), generator=g)
        self.comment = torch.randint(10, 50, (n, 8), generator=g)
        for i in range(n):
            key = 1 + 3 * self.y[i] + torch.randint(0, 3, (1,), generator=g)
            self.subject[i, torch.randint(0, 6, (1,), generator=g)] = key
            n_tok = int(torch.randint(2, 9, (1,), generator=g))
            self.comment[i, n_tok:] = 0
        self.comment[torch.rand(n, generator=g) < 0.3] = 0

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"subject": self.subject[i], "comment": self.comment[i], "labels": self.y[i]}


class Pool(nn.Module):
    """Attention pooling over the tokens of a field."""
    def __init__(self, dim):
        super().__init__()
        self.key = nn.Linear(dim, dim)
        self.query = nn.Parameter(torch.randn(dim) * 0.2)

    def forward(self, h, mask):
        score = self.key(h) @ self.query.to(h.dtype)
        score = score + (1.0 - mask.to(score.dtype)) * -1e9
        return (torch.softmax(score, dim=-1).unsqueeze(-1) * h).sum(1)


class Router(nn.Module):
    def __init__(self, vocab=50, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.mix = nn.Linear(dim, dim)
        self.pool_s, self.pool_c = Pool(dim), Pool(dim)
        self.head = nn.Linear(2 * dim, 3)

    def encode(self, ids, pool):
        return pool(F.gelu(self.mix(self.emb(ids))), ids != 0)

    def forward(self, subject, comment, labels=None):
        device = subject.device.type
        with torch.autocast(device, dtype=torch.float16, enabled=self.amp):
            h = torch.cat([self.encode(subject, self.pool_s), self.encode(comment, self.pool_c)], -1)
            logits = self.head(h)
        return {"loss": F.cross_entropy(logits.float(), labels), "logits": logits.float()}


class Show(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fp32", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    model = Router()
    model.amp = not args.fp32
    targs = TrainingArguments(output_dir="out", num_train_epochs=4, per_device_train_batch_size=32, learning_rate=5e-3,
                              per_device_eval_batch_size=256, logging_steps=24, logging_nan_inf_filter=False,
                              save_strategy="no", report_to=[], disable_tqdm=True,
                              use_cpu=not torch.cuda.is_available())
    trainer = Trainer(model=model, args=targs, train_dataset=Tickets(768, 0), eval_dataset=Tickets(256, 1),
                      compute_metrics=lambda p: {"acc": float((p.predictions.argmax(-1) == p.label_ids).mean())},
                      callbacks=[Show()])
    trainer.train()
    ev = trainer.evaluate()
    print(f"eval_loss {ev['eval_loss']:.4f} eval_acc {ev['eval_acc']:.3f}")


if __name__ == "__main__":
    main()
