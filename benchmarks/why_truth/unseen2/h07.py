"""Classifier with heavy dropout; a guard leaves out batches whose loss is not finite."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(7)
CLASSES, INPUT, STEPS = 6, 16, 160
centres = 1.5 * torch.randn(CLASSES, INPUT)


def batch(n):
    y = torch.randint(0, CLASSES, (n,))
    return centres[y] + torch.randn(n, INPUT), y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(INPUT, 64), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(64, CLASSES),
        )

    def forward(self, x):
        return self.layers(x)


def main():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    left_out = 0
    for step in range(STEPS):
        x, y = batch(24)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x).float(), y)
        if torch.isnan(loss) or torch.isinf(loss):
            left_out += 1
            optimizer.zero_grad()
            continue
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 16 == 0 or step == STEPS - 1:
            print(f"step {step:3d} loss {loss.item():.4f} left out {left_out}")
    model.eval()
    with torch.no_grad():
        x, y = batch(512)
        print(f"accuracy {(model(x).argmax(1) == y).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
