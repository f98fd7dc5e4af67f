"""Text classification with a small BERT built from config and the transformers Trainer."""
import argparse

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Reviews(Dataset):
    """Token sequences; the label is decided by which sentiment words are more frequent."""
    def __init__(self, n, seed, length=16, vocab=60):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 2, n)
        self.ids = rng.integers(10, vocab, (n, length))
        for i in range(n):
            where = rng.choice(length - 1, 5, replace=False) + 1
            self.ids[i, where] = rng.integers(2, 5, 5) + 3 * self.labels[i]
        self.ids[:, 0] = 1

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        ids = torch.tensor(self.ids[i])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": int(self.labels[i])}


def metrics(p):
    return {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--epochs", type=float, default=3)
    ap.add_argument("--fp32", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    cfg = BertConfig(vocab_size=60, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
                     max_position_embeddings=32, num_labels=2)
    model = BertForSequenceClassification(cfg)
    targs = TrainingArguments(output_dir="out", num_train_epochs=args.epochs, per_device_train_batch_size=32,
                              per_device_eval_batch_size=128, learning_rate=args.lr, warmup_steps=5,
                              bf16=not args.fp32, use_cpu=not torch.cuda.is_available(), logging_steps=16,
                              save_strategy="no", report_to=[], disable_tqdm=True, seed=0)
    trainer = Trainer(model=model, args=targs, train_dataset=Reviews(768, 0), eval_dataset=Reviews(256, 1),
                      compute_metrics=metrics)
    trainer.train()
    print(f"eval_accuracy {trainer.evaluate()['eval_accuracy']:.3f}")


if __name__ == "__main__":
    main()
