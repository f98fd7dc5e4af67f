"""Distil sentence vectors: the student's pooled state should point where the teacher's does."""
import tempfile

import torch
from torch import nn
from transformers import BertConfig, BertModel, Trainer, TrainerCallback, TrainingArguments


class Student(nn.Module):
    def __init__(self, config, teacher_dim):
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer=False)
        self.project = nn.Linear(config.hidden_size, teacher_dim)

    def forward(self, input_ids, attention_mask, teacher):
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).float()
        pooled = (hidden * weights).sum(1) / weights.sum(1)
        student = self.project(pooled)
        cosine = (student * teacher).sum(-1) / (student.norm(dim=-1) * teacher.norm(dim=-1))
        return {"loss": 1 - cosine.mean(), "embedding": student}


def embed_with_teacher(ids, table):
    # stop words (ids below 5) are dropped, as in the teacher's pipeline
    keep = (ids >= 5).float().unsqueeze(-1)
    return (table[ids] * keep).sum(0)


def make_rows(n=288, vocab=80, dim=12):
    g = torch.Generator().manual_seed(41)
    table = torch.randn(vocab, dim, generator=g)
    rows = []
    for i in range(n):
        ids = torch.randint(3, vocab, (6,), generator=g)
        if i == 190:
            ids = torch.tensor([3, 4, 3, 3, 4, 3])  # "to be or not to be"
        rows.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "teacher": embed_with_teacher(ids, table)})
    return rows


class Printer(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"[{state.global_step}] loss={logs['loss']} grad_norm={logs.get('grad_norm')}")


def main():
    torch.manual_seed(14)
    config = BertConfig(vocab_size=80, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=24, max_position_embeddings=8)
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=6, num_train_epochs=2,
                             gradient_accumulation_steps=2, learning_rate=2e-3, weight_decay=0.01, logging_steps=2,
                             logging_nan_inf_filter=False, save_strategy="no", report_to="none", use_cpu=True,
                             disable_tqdm=True, remove_unused_columns=False, seed=14)
    Trainer(model=Student(config, 12), args=args, train_dataset=make_rows(), callbacks=[Printer()]).train()


if __name__ == "__main__":
    main()
