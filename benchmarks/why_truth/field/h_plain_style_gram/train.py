"""Fine-tune a small image network to match the style of one picture, with AMP."""
import argparse
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    """Photographs; some were saved in 0..255 instead of 0..1."""

    def __init__(self, n, size):
        g = torch.Generator().manual_seed(11)
        self.images = torch.rand(n, 3, size, size, generator=g)
        self.images[150:154] *= 255

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i]


class TransformNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down = nn.Conv2d(3, width, 3, padding=1)
        self.mid = nn.Conv2d(width, width, 3, padding=1)
        self.up = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x):
        h = F.relu(self.down(x))
        h = F.relu(self.mid(h))
        return self.up(h), h


def gram_matrix(features):
    b, c, h, w = features.shape
    flat = features.reshape(b, c, h * w)
    gram = torch.bmm(flat, flat.transpose(1, 2))
    return gram / (c * h * w)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--style-weight", type=float, default=10.0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--save-dir", default=os.path.join(tempfile.gettempdir(), "style"))
    args = parser.parse_args()

    torch.manual_seed(0)
    os.makedirs(args.save_dir, exist_ok=True)
    model = TransformNet(8)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loader = DataLoader(Pictures(200, 16), batch_size=args.batch_size)

    with torch.no_grad():
        style = gram_matrix(model(torch.rand(1, 3, 16, 16))[1])

    step = 0
    for epoch in range(args.epochs):
        for images in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                output, features = model(images)
                content_loss = F.mse_loss(output, images)
                style_loss = F.mse_loss(gram_matrix(features), style.expand(len(images), -1, -1))
                loss = content_loss + args.style_weight * style_loss
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            step += 1
            if step % 5 == 0 or not torch.isfinite(loss):
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} scale {scaler.get_scale()}")
        torch.save(model.state_dict(), os.path.join(args.save_dir, f"epoch{epoch}.pt"))


if __name__ == "__main__":
    main()
