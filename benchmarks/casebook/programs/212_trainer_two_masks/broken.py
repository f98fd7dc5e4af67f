import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class TinyEncoder(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.tok = nn.Embedding(30, d)
        self.q, self.k, self.v = (nn.Linear(d, d) for _ in range(3))
        self.cls = nn.Linear(d, 2)

    def forward(self, input_ids, labels):
        x = self.tok(input_ids)
        mask = (input_ids != 0).to(self.q.weight.dtype)
        q, k, v = self.q(x)[:, None], self.k(x)[:, None], self.v(x)[:, None]
        bias = (1.0 - mask)[:, None, None, :] * torch.finfo(q.dtype).min
        causal = torch.full((x.size(1),) * 2, torch.finfo(q.dtype).min).triu(1).to(q.dtype)
        s = q @ k.transpose(-1, -2) + bias + causal
        h = (torch.softmax(s, -1) @ v).squeeze(1)[:, 0]
        return {"loss": nn.functional.cross_entropy(self.cls(h).float(), labels)}


class PrintTrainer(Trainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if self.state.global_step % 5 == 0:
            print(f"step {self.state.global_step} | loss {loss.item():.4f}")
        return loss


torch.manual_seed(0)
rows = []
for i in range(480):
    ids = torch.randint(1, 30, (6,))
    if i % 160 == 50:
        ids[:] = 0
    rows.append({"input_ids": ids, "labels": int(ids[0] > 15)})
args = TrainingArguments(
    "enc", max_steps=50, per_device_train_batch_size=24, learning_rate=0.3, optim="sgd", report_to=[],
    save_strategy="no", logging_steps=1000, disable_tqdm=True, use_cpu=True,
)
with torch.no_grad():
    model = TinyEncoder().half()
    model.q.bias.fill_(-8)
    model.k.bias.fill_(8)
PrintTrainer(model, args, train_dataset=rows).train()
