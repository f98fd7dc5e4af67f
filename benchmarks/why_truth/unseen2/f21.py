"""Lightning: match queries to documents by cosine score; documents are bags of words."""
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCAB = 64
TOPICS = 8


class Matches(Dataset):
    def __init__(self, size, seed):
        g = torch.Generator().manual_seed(seed)
        topics = torch.rand(TOPICS, VOCAB, generator=torch.Generator().manual_seed(77)).pow(6) * 0.4
        topic = torch.randint(0, TOPICS, (size,), generator=g)
        self.query = torch.bernoulli(topics[topic], generator=g)
        document = torch.bernoulli(topics[topic], generator=g)
        # very frequent words carry no information
        document[:, : VOCAB // 2] = 0
        self.document = document

    def __len__(self):
        return len(self.query)

    def __getitem__(self, i):
        return self.query[i], self.document[i]


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


class Matcher(L.LightningModule):
    def __init__(self, dim=24, lr=5e-3):
        super().__init__()
        self.lr = lr
        self.query_tower = nn.Sequential(nn.Linear(VOCAB, 48), nn.ReLU(), nn.Linear(48, dim))
        self.document_tower = nn.Linear(VOCAB, dim, bias=False)

    def training_step(self, batch, batch_idx):
        query, document = batch
        q = unit(self.query_tower(query).float())
        d = unit(self.document_tower(document).float())
        loss = F.cross_entropy(10.0 * q @ d.T, torch.arange(len(q)))
        self.log("train_loss", loss)
        if batch_idx % 10 == 0:
            print(f"epoch {self.current_epoch} batch {batch_idx} loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main():
    L.seed_everything(3)
    loader = DataLoader(Matches(800, seed=1), batch_size=16, shuffle=True)
    trainer = L.Trainer(
        max_epochs=3, accelerator="cpu", precision="bf16-mixed", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
    )
    trainer.fit(Matcher(), loader)


if __name__ == "__main__":
    main()
