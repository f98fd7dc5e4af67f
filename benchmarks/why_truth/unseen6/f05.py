# Kaggle-style CNN baseline on digits, fold 0 only
import os
import random
import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold
from torch.utils.data import DataLoader, TensorDataset


class CFG:
    seed = 2024
    n_fold = 5
    epochs = 5
    batch_size = 64
    lr = 0.05
    momentum = 0.9
    weight_decay = 1e-4
    max_grad_norm = 1.0
    apex = True
    print_freq = 10


def seed_everything(seed):
    random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, v, n=1):
        self.sum += v * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


class SmallCNN(nn.Module):
    def __init__(self, n_classes=10):
        super().__init__()
        self.c1 = nn.Conv2d(1, 16, 3, padding=1)
        self.c2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(32 * 4, n_classes)

    def forward(self, x):
        x = self.pool(torch.relu(self.c1(x)))
        x = self.pool(torch.relu(self.c2(x)))
        return self.fc(self.drop(x.flatten(1)))


def train_fn(loader, model, criterion, optimizer, epoch, scheduler, scaler):
    model.train()
    losses = AverageMeter()
    for step, (images, labels) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.float16, enabled=CFG.apex):
            y_preds = model(images)
            loss = criterion(y_preds.float(), labels)
        losses.update(loss.item(), labels.size(0))
        scaler.scale(loss).backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CFG.max_grad_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
        if step % CFG.print_freq == 0:
            print(f"Epoch: [{epoch + 1}][{step}/{len(loader)}] Loss: {losses.avg:.4f} "
                  f"Grad: {grad_norm:.4f} LR: {scheduler.get_last_lr()[0]:.6f}")
    return losses.avg


@torch.no_grad()
def valid_fn(loader, model, criterion):
    model.eval()
    losses = AverageMeter()
    for images, labels in loader:
        losses.update(criterion(model(images), labels).item(), labels.size(0))
    return losses.avg


if __name__ == "__main__":
    seed_everything(CFG.seed)
    X, y = load_digits(return_X_y=True)
    X = torch.tensor(X.reshape(-1, 1, 8, 8) / 16.0, dtype=torch.float32)
    y = torch.tensor(y)
    tr, va = next(StratifiedKFold(CFG.n_fold, shuffle=True, random_state=CFG.seed).split(X, y))
    train_loader = DataLoader(TensorDataset(X[tr], y[tr]), CFG.batch_size, shuffle=True, drop_last=True)
    valid_loader = DataLoader(TensorDataset(X[va], y[va]), 256)
    model = SmallCNN()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=CFG.lr, momentum=CFG.momentum,
                                weight_decay=CFG.weight_decay)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=CFG.epochs * len(train_loader))
    scaler = torch.amp.GradScaler("cpu", enabled=CFG.apex)
    best = float("inf")
    for epoch in range(CFG.epochs):
        tl = train_fn(train_loader, model, criterion, optimizer, epoch, scheduler, scaler)
        vl = valid_fn(valid_loader, model, criterion)
        best = min(best, vl)
        print(f"Epoch {epoch + 1} - avg_train_loss: {tl:.4f}  avg_val_loss: {vl:.4f}")
    print(f"val_loss {best:.4f}")
