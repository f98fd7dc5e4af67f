import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class PolyBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2)) ** 4
        weights = scores / scores.sum(-1, keepdim=True)
        return x + weights.to(v.dtype) @ v


class Tagger(nn.Module):
    def __init__(self, vocab=30, d=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.block = PolyBlock(d)
        self.out = nn.Linear(d, 4)

    def forward(self, input_ids=None, labels=None):
        h = self.block(2 * self.emb(input_ids))
        logits = self.out(h)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())}


class AmpTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        with torch.autocast("cpu", dtype=torch.float16):
            return super().compute_loss(model, inputs, **kwargs)


torch.manual_seed(4)
data = [{"input_ids": (ids := torch.randint(0, 30, (10,))), "labels": ids % 4} for _ in range(96)]
args = TrainingArguments(
    "tagger", max_steps=10, per_device_train_batch_size=12, report_to=[], save_strategy="no", disable_tqdm=True,
    use_cpu=True, logging_steps=5,
)
AmpTrainer(Tagger(), args, train_dataset=data).train()
