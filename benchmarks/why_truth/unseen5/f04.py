"""Bag-of-words + conv sentiment classifier, SGD with momentum, fp16 autocast."""
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.3)
parser.add_argument("--max-norm", type=float, default=1.0)
parser.add_argument("--seed", type=int, default=21)
args = parser.parse_args()
torch.manual_seed(args.seed)

VOCAB, LEN = 300, 24


def synth(n):
    y = torch.randint(0, 2, (n,))
    x = torch.randint(60, VOCAB, (n, LEN))
    polar = torch.rand(n, LEN) < 0.25
    words = torch.randint(0, 30, (n, LEN)) + 30 * y[:, None]
    return torch.where(polar, words, x), y


train = TensorDataset(*synth(3000))
val = TensorDataset(*synth(800))


class TextCNN(nn.Module):
    def __init__(self, dim=32, ch=48):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.lin = nn.Linear(3 * dim, ch)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(ch, 2)

    def forward(self, x):
        h = self.emb(x)
        win = torch.cat([h[:, :-2], h[:, 1:-1], h[:, 2:]], -1)
        h = torch.relu(self.lin(win)).amax(1)
        return self.out(self.drop(h))


def train_step(model, batch, opt, scaler, criterion):
    x, y = batch
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
    scaler.step(opt)
    scaler.update()
    return loss.item(), norm.item()


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    good = total = 0
    for x, y in loader:
        with torch.autocast("cpu", dtype=torch.float16):
            good += (model(x).argmax(1) == y).sum().item()
        total += len(y)
    model.train()
    return good / total


def main():
    model = TextCNN()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-5)
    scaler = torch.amp.GradScaler("cpu")
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    loader = DataLoader(train, batch_size=100, shuffle=True)
    for epoch in range(args.epochs):
        stats = [train_step(model, b, opt, scaler, criterion) for b in loader]
        mean_loss = sum(s[0] for s in stats) / len(stats)
        print(f"epoch {epoch} loss {mean_loss:.4f}")
    print(f"val_acc {accuracy(model, DataLoader(val, batch_size=200)):.4f}")


if __name__ == "__main__":
    main()
