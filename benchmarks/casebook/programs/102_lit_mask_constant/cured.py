import torch
from torch import nn
import lightning as L
from lightning.pytorch.plugins import MixedPrecision


class PoolClassifier(L.LightningModule):
    def __init__(self, vocab=50, d=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=0)
        self.key = nn.Linear(d, d)
        self.query = nn.Parameter(torch.randn(1, 1, d))
        self.out = nn.Linear(d, 2)

    def forward(self, ids):
        x = self.emb(ids)
        padding = ids == 0
        scores = torch.matmul(self.query.expand(len(x), -1, -1), self.key(x).transpose(1, 2))
        scores.masked_fill_(padding[:, None, :], torch.finfo(scores.dtype).min)
        pooled = torch.softmax(scores, dim=-1) @ x
        return self.out(pooled.squeeze(1))

    def training_step(self, batch, _):
        ids, y = batch
        loss = nn.functional.cross_entropy(self(ids), y)
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def on_train_epoch_end(self):
        print("epoch", self.current_epoch, "loss", float(self.trainer.callback_metrics["loss"]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


L.seed_everything(0)
ids = torch.randint(1, 50, (640, 9))
ids[:, 6:] *= torch.randint(0, 2, (640, 3))
y = ((ids > 25).sum(1) > (ids > 0).sum(1) / 2).long()
ds = torch.utils.data.TensorDataset(ids, y)
trainer = L.Trainer(
    max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
    plugins=[MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))],
)
trainer.fit(PoolClassifier(), torch.utils.data.DataLoader(ds, 64, shuffle=True))
