"""Sequence tagging with a tiny BERT, Trainer, bf16 and gradient accumulation."""
import argparse

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainerCallback, TrainingArguments


class Tags(Dataset):
    """Tag 1 for tokens that name an entity, 0 otherwise; padding is ignored."""
    def __init__(self, n, seed, length=12):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(3, 40, (n, length), generator=g)
        self.lab = (self.ids > 28).long()
        size = torch.randint(6, length + 1, (n,), generator=g)
        self.mask = (torch.arange(length)[None] < size[:, None]).long()
        self.ids = self.ids * self.mask
        self.lab = self.lab.masked_fill(self.mask == 0, -100)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": self.mask[i], "labels": self.lab[i]}


class StopOnNan(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f} grad_norm {float(logs['grad_norm']):.3f}")
            if float(logs["loss"]) != float(logs["loss"]):
                control.should_training_stop = True
        return control


def score(p):
    ok = p.label_ids != -100
    return {"acc": float((p.predictions.argmax(-1) == p.label_ids)[ok].mean())}


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--fp32", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    cfg = BertConfig(vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                     max_position_embeddings=16, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    targs = TrainingArguments(output_dir="out", num_train_epochs=3, per_device_train_batch_size=16,
                              gradient_accumulation_steps=2, learning_rate=2e-3, warmup_steps=5, bf16=not args.fp32,
                              per_device_eval_batch_size=128, logging_steps=12, save_strategy="no", report_to=[],
                              disable_tqdm=True, use_cpu=not torch.cuda.is_available())
    trainer = Trainer(model=BertForTokenClassification(cfg), args=targs, train_dataset=Tags(512, 0),
                      eval_dataset=Tags(128, 1), compute_metrics=score, callbacks=[StopOnNan()])
    trainer.train()
    print(f"eval_acc {trainer.evaluate()['eval_acc']:.3f}")
