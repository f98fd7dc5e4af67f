import torch
from torch import nn
from transformers import BertConfig, BertModel, Trainer, TrainingArguments


class Grader(nn.Module):
    """A backbone in half to save memory, and a small head that is trained."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone.half().requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, input_ids, labels=None):
        h = self.backbone(input_ids=input_ids).last_hidden_state.mean(1).float()
        score = self.head(h).squeeze(-1)
        return {"loss": nn.functional.mse_loss(score, labels), "logits": score}


torch.manual_seed(0)
cfg = BertConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=16, hidden_dropout_prob=0.0, initializer_range=0.3,
)
rows = []
for _ in range(640):
    ids = torch.randint(2, 50, (6,))
    rows.append({"input_ids": ids, "labels": (ids > 25).float().mean()})
args = TrainingArguments(
    "o", num_train_epochs=2, per_device_train_batch_size=16, learning_rate=5e-3, logging_steps=8,
    report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
)
Trainer(Grader(BertModel(cfg)), args, train_dataset=rows).train()
