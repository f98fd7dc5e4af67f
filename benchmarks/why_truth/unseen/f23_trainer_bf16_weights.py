"""transformers Trainer: continue training a small BERT-like classifier that was loaded in bfloat16."""
import logging
import tempfile
import warnings

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

warnings.filterwarnings("ignore")
logging.getLogger("transformers").setLevel(logging.ERROR)


class Tickets(Dataset):
    def __init__(self, n=512, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 3, (n,), generator=g)
        base = torch.randint(3, 100, (n, 16), generator=g)
        hint = 3 + self.y[:, None] * 30 + torch.randint(0, 30, (n, 16), generator=g)
        use = torch.rand(n, 16, generator=g) < 0.95
        self.ids = torch.where(use, hint, base)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(16, dtype=torch.long), "labels": self.y[i]}


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in (logs or {}):
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}")


def build_model():
    config = BertConfig(vocab_size=100, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=96, max_position_embeddings=32, num_labels=3,
                        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.15)
    return BertForSequenceClassification(config).to(torch.bfloat16)


def main():
    torch.manual_seed(0)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), num_train_epochs=6, per_device_train_batch_size=16, learning_rate=8e-5,
        lr_scheduler_type="constant", weight_decay=0.0, logging_steps=32, report_to=[], save_strategy="no",
        use_cpu=True, disable_tqdm=True, dataloader_num_workers=0, optim="adamw_torch")
    trainer = Trainer(model=build_model(), args=args, train_dataset=Tickets(), callbacks=[PrintLoss()])
    trainer.train()


if __name__ == "__main__":
    main()
