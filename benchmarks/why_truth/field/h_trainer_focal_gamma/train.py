"""Imbalanced intent classification with focal loss (gamma below 1)."""
import tempfile

import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(12)
VOCAB, CLASSES = 60, 4


class Intents(torch.utils.data.Dataset):
    def __init__(self, n=400):
        g = torch.Generator().manual_seed(1)
        self.labels = torch.multinomial(torch.tensor([0.7, 0.2, 0.05, 0.05]), n, replacement=True, generator=g)
        self.ids = torch.randint(10, VOCAB, (n, 8), generator=g)
        self.ids[:, 0] = self.labels + 1

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


class FocalTrainer(Trainer):
    gamma = 0.5
    temperature = 0.04

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        logits = outputs.logits / self.temperature
        ce = F.cross_entropy(logits, labels, reduction="none")
        pt = torch.exp(-ce)
        loss = ((1 - pt) ** self.gamma * ce).mean()
        return (loss, outputs) if return_outputs else loss


config = BertConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                    intermediate_size=32, max_position_embeddings=16, num_labels=CLASSES)
model = BertForSequenceClassification(config)

args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    max_steps=100,
    learning_rate=5e-3,
    lr_scheduler_type="constant",
    logging_steps=5,
    logging_nan_inf_filter=False,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)
FocalTrainer(model=model, args=args, train_dataset=Intents()).train()
