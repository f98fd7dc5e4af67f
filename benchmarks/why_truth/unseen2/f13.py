"""Token tagging with a tiny BERT and the transformers Trainer; sub-words of one word share a label."""
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainingArguments, set_seed

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
VOCAB = 80
PAD = 0


def make_sentence(g):
    length = int(torch.randint(5, 15, (1,), generator=g))
    tags = torch.randint(0, len(TAGS), (length,), generator=g)
    words = tags * 15 + 1 + torch.randint(0, 15, (length,), generator=g)
    return words, tags


class Tagging(Dataset):
    def __init__(self, size, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = [make_sentence(g) for _ in range(size)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    longest = max(len(words) for words, _ in rows)
    ids = torch.full((len(rows), longest), PAD)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full((len(rows), longest), -1)
    for i, (words, tags) in enumerate(rows):
        ids[i, : len(words)] = words
        mask[i, : len(words)] = 1
        labels[i, : len(tags)] = tags
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def main():
    set_seed(0)
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32, num_labels=len(TAGS), pad_token_id=PAD,
    )
    model = BertForTokenClassification(config)
    args = TrainingArguments(
        output_dir="/tmp/tagging", per_device_train_batch_size=8, max_steps=80, learning_rate=2e-3,
        logging_steps=10, bf16=True, use_cpu=True, save_strategy="no", report_to=[], disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = Trainer(model=model, args=args, train_dataset=Tagging(640, seed=1), data_collator=collate)
    trainer.train()


if __name__ == "__main__":
    main()
