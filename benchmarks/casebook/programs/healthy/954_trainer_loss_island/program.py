import torch
from torch import nn
from transformers import BertConfig, BertModel, Trainer, TrainingArguments


class Margin(nn.Module):
    def __init__(self, cfg, classes=5):
        super().__init__()
        self.bert = BertModel(cfg)
        self.centres = nn.Parameter(torch.randn(classes, cfg.hidden_size))

    def forward(self, input_ids, labels=None):
        with torch.autocast("cpu", dtype=torch.float16):
            h = self.bert(input_ids=input_ids).last_hidden_state[:, 0]
        h = nn.functional.normalize(h.float(), dim=-1, eps=1e-12)
        cos = h @ nn.functional.normalize(self.centres, dim=-1).t()
        logits = 30 * (cos - 0.1 * nn.functional.one_hot(labels, cos.size(1)))
        p = logits.exp() / logits.exp().sum(-1, keepdim=True)
        loss = -torch.log(p.gather(1, labels[:, None]) + 1e-12).mean()
        return {"loss": loss, "logits": logits}


torch.manual_seed(0)
cfg = BertConfig(
    vocab_size=40, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2,
)
rows = []
for _ in range(800):
    ids = torch.randint(2, 40, (5,))
    rows.append({"input_ids": ids, "labels": int(ids[0]) % 5})
args = TrainingArguments(
    "o", num_train_epochs=3, per_device_train_batch_size=32, learning_rate=5e-3, logging_steps=5, seed=1,
    report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
)
Trainer(Margin(cfg), args, train_dataset=rows).train()
