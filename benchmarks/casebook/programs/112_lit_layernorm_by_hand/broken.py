import lightning as L
import torch
from torch import nn


class TFLayerNorm(nn.Module):
    """TF style: epsilon inside the square root"""

    def __init__(self, n):
        super().__init__()
        self.g = nn.Parameter(torch.ones(n))
        self.b = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        return self.g * (x - u) / torch.sqrt(s + 1e-12) + self.b


class Tagger(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(30, 16, padding_idx=0)
        self.norm = TFLayerNorm(16)
        self.out = nn.Linear(16, 5)

    def training_step(self, ids, i):
        logits = self.out(self.norm(self.emb(ids)))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten() % 5)
        if i % 5 == 0:
            print(f"epoch {self.current_epoch} step {i}: loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


L.seed_everything(0)
ids = torch.randint(1, 30, (640, 8))
ids[:, 5:] *= torch.randint(0, 2, (640, 3))
trainer = L.Trainer(
    max_epochs=3, precision="16-true", accelerator="cpu", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Tagger(), torch.utils.data.DataLoader(ids, batch_size=32))
