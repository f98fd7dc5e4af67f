"""transformers Trainer, bf16=True (FP32 weights), padded batches, warm-up and label smoothing."""
import logging
import tempfile
import warnings

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

warnings.filterwarnings("ignore")
logging.getLogger("transformers").setLevel(logging.ERROR)


class Mails(Dataset):
    def __init__(self, n=480):
        g = torch.Generator().manual_seed(0)
        self.rows = []
        for _ in range(n):
            y = int(torch.randint(0, 2, (1,), generator=g))
            length = int(torch.randint(4, 16, (1,), generator=g))
            ids = torch.randint(3, 60, (length,), generator=g) + 30 * y
            self.rows.append((ids, y))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    ids = torch.zeros(len(rows), 16, dtype=torch.long)
    mask = torch.zeros(len(rows), 16, dtype=torch.long)
    for i, (r, _) in enumerate(rows):
        ids[i, : len(r)], mask[i, : len(r)] = r, 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([y for _, y in rows])}


class Show(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in (logs or {}):
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}")


def main():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=64, max_position_embeddings=16, num_labels=2)
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=16, num_train_epochs=4,
                             learning_rate=2e-3, warmup_steps=20, label_smoothing_factor=0.05, bf16=True,
                             use_cpu=True, logging_steps=15, report_to=[], save_strategy="no", disable_tqdm=True)
    Trainer(model=BertForSequenceClassification(config), args=args, train_dataset=Mails(), data_collator=collate,
            callbacks=[Show()]).train()


if __name__ == "__main__":
    main()
