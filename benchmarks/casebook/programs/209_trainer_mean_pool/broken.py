import torch
from torch import nn
from transformers import BertConfig, BertModel, Trainer, TrainingArguments


class SentenceModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.bert = BertModel(cfg, add_pooling_layer=False)
        self.score = nn.Linear(cfg.hidden_size, 1)

    def forward(self, input_ids, attention_mask, labels):
        h = self.bert(input_ids).last_hidden_state
        m = attention_mask[..., None].to(h.dtype)
        pooled = (h * m).sum(1) / (m.sum(1) + 1e-9)
        s = self.score(pooled).squeeze(-1)
        return {"loss": nn.functional.binary_cross_entropy_with_logits(s.float(), labels), "logits": s}


class Verbose(Trainer):
    def compute_loss(self, model, inputs, *a, **k):
        loss = super().compute_loss(model, inputs, *a, **k)
        if self.state.global_step % 5 == 0:
            print("step", self.state.global_step, "loss", round(loss.item(), 4))
        return loss


torch.manual_seed(0)
cfg = BertConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=12,
)
data = []
for i in range(400):
    ids = torch.randint(1, 50, (9,))
    mask = torch.ones(9, dtype=torch.long)
    if i == 333:
        mask[:] = 0  # an empty string got in
    data.append({"input_ids": ids, "attention_mask": mask, "labels": float((ids > 25).sum() > 4)})
args = TrainingArguments(
    "sent", max_steps=60, per_device_train_batch_size=20, learning_rate=5e-3, adam_epsilon=1e-4,
    report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True, logging_steps=1000,
)
Verbose(SentenceModel(cfg).half(), args, train_dataset=data).train()
