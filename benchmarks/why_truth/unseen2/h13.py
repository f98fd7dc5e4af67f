"""Masked-token training with the transformers Trainer; some batches have no masked token at all."""
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertModel, Trainer, TrainingArguments, set_seed

VOCAB, LENGTH, MASK = 14, 10, 1


class Sentences(Dataset):
    def __init__(self, size):
        g = torch.Generator().manual_seed(13)
        start = torch.randint(0, VOCAB - 2, (size, 1), generator=g)
        self.ids = (start + 2 * torch.arange(LENGTH)) % (VOCAB - 2) + 2
        self.hide = torch.rand(size, LENGTH, generator=g) < 0.08

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        ids, hide = self.ids[i], self.hide[i]
        return {"input_ids": ids.masked_fill(hide, MASK), "labels": ids.masked_fill(~hide, -100)}


class MaskedModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = BertModel(BertConfig(
            vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        ), add_pooling_layer=False)
        self.head = torch.nn.Linear(32, VOCAB)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.bert(input_ids).last_hidden_state).float()
        total = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
        )
        count = (labels != -100).sum()
        return {"loss": total / count.clamp(min=1), "logits": logits}


if __name__ == "__main__":
    set_seed(13)
    args = TrainingArguments(
        output_dir="/tmp/masked", per_device_train_batch_size=4, max_steps=200, learning_rate=3e-3, logging_steps=20,
        bf16=True, use_cpu=True, save_strategy="no", report_to=[], disable_tqdm=True, logging_nan_inf_filter=False,
    )
    Trainer(model=MaskedModel(), args=args, train_dataset=Sentences(800)).train()
