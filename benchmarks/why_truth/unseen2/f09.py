"""Train a small BERT-style classifier with the transformers Trainer; weights are kept in half to save memory."""
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

WORDS = 50
LENGTH = 12


class Reviews(Dataset):
    """Positive reviews draw from the upper half of the word list more often."""

    def __init__(self, size, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 2, (size,), generator=g)
        low = torch.randint(1, WORDS // 2, (size, LENGTH), generator=g)
        high = torch.randint(WORDS // 2, WORDS, (size, LENGTH), generator=g)
        chance = torch.where(self.labels == 1, 0.75, 0.25).unsqueeze(1)
        self.ids = torch.where(torch.rand(size, LENGTH, generator=g) < chance, high, low)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {
            "input_ids": self.ids[i],
            "attention_mask": torch.ones(LENGTH, dtype=torch.long),
            "labels": self.labels[i],
        }


def get_model():
    config = BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=LENGTH, num_labels=2,
        hidden_dropout_prob=0.0, initializer_range=0.1, attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config).half()


def main():
    set_seed(4)
    args = TrainingArguments(
        output_dir="/tmp/reviews",
        per_device_train_batch_size=8,
        max_steps=60,
        learning_rate=4e-3,
        adam_epsilon=1e-8,
        warmup_steps=5,
        max_grad_norm=0.0,
        logging_steps=5,
        logging_nan_inf_filter=False,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        optim="adamw_torch",
    )
    trainer = Trainer(model=get_model(), args=args, train_dataset=Reviews(512))
    trainer.train()


if __name__ == "__main__":
    main()
