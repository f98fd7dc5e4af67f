"""Masked-token pretraining of a tiny BERT with the transformers Trainer in bf16."""
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments, set_seed

set_seed(12)
VOCAB, LEN, MASK, PAD = 24, 14, 1, 0


class MLM(Dataset):
    """Sequences count upwards with a fixed stride; one or two tokens are scored."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            start, size = torch.randint(0, 20, (2,), generator=g).tolist()
            size = 4 + size % 10
            ids = torch.tensor([2 + (start + 3 * k) % 22 for k in range(size)])
            hide = torch.randperm(size, generator=g)[: 1 + size // 9]
            labels = torch.full((LEN,), -100)
            labels[hide] = ids[hide]
            ids[hide] = MASK
            full = torch.full((LEN,), PAD)
            full[:size] = ids
            self.items.append({"input_ids": full, "attention_mask": (full != PAD).long(), "labels": labels})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def main():
    model = BertForMaskedLM(BertConfig(
        vocab_size=VOCAB, hidden_size=48, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=96, max_position_embeddings=LEN, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, layer_norm_eps=1e-12))
    args = TrainingArguments(
        output_dir="/tmp/h06", per_device_train_batch_size=32, max_steps=450, learning_rate=3e-3,
        bf16=True, use_cpu=True, logging_steps=50, save_strategy="no", report_to=[],
        disable_tqdm=True, gradient_accumulation_steps=1, max_grad_norm=1.0, seed=12)
    Trainer(model=model, args=args, train_dataset=MLM(3000, 1)).train()
    model.eval()
    held = MLM(300, 2)
    batch = {k: torch.stack([r[k] for r in held.items]) for k in held.items[0]}
    with torch.no_grad():
        pred = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.argmax(-1)
    scored = batch["labels"] != -100
    acc = (pred[scored] == batch["labels"][scored]).float().mean().item()
    print(f"val_acc {acc:.4f}")


if __name__ == "__main__":
    main()
