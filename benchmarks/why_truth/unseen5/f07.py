"""Binary lesion segmentation on 40x40 scans with a tiny U-Net, fp16 autocast."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(42)
SIZE, N_TRAIN, N_VAL = 40, 128, 40
SEG_WEIGHT = 0.01


def make_scans(n):
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    cx = torch.randint(8, SIZE - 8, (n, 1, 1))
    cy = torch.randint(8, SIZE - 8, (n, 1, 1))
    rad = torch.randint(4, 8, (n, 1, 1))
    mask = ((xx - cx) ** 2 + (yy - cy) ** 2 <= rad**2).float()
    img = 0.6 * mask + 0.45 * torch.randn(n, SIZE, SIZE)
    return img.unsqueeze(1), mask.unsqueeze(1)


class Block(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.ReLU())


class TinyUNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.e1, self.e2, self.e3 = Block(1, c), Block(c, 2 * c), Block(2 * c, 2 * c)
        self.d2, self.d1 = Block(4 * c, c), Block(2 * c, c)
        self.head = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = self.e1(x)
        b = self.e2(F.max_pool2d(a, 2))
        z = self.e3(F.max_pool2d(b, 2))
        u = self.d2(torch.cat([b, F.interpolate(z, scale_factor=2)], 1))
        u = self.d1(torch.cat([a, F.interpolate(u, scale_factor=2)], 1))
        return self.head(u)


def dice(logits, target):
    p = (logits.float() > 0).float()
    return (2 * (p * target).sum() / (p.sum() + target.sum()).clamp(min=1)).item()


class Experiment:
    def __init__(self):
        self.train_x, self.train_y = make_scans(N_TRAIN)
        self.val_x, self.val_y = make_scans(N_VAL)
        self.model = TinyUNet()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=4e-3)
        self.accum = 4

    def step(self, idx):
        self.opt.zero_grad(set_to_none=True)
        total = 0.0
        for part in idx.chunk(self.accum):
            x, y = self.train_x[part], self.train_y[part]
            with torch.autocast("cpu", dtype=torch.float16):
                logits = self.model(x)
                loss = F.binary_cross_entropy_with_logits(logits, y.to(logits.dtype))
            loss = SEG_WEIGHT * loss * len(part) / N_TRAIN
            loss.backward()
            total += loss.item()
        self.opt.step()
        return total * N_TRAIN / len(idx) / SEG_WEIGHT

    def run(self, epochs=5):
        for epoch in range(epochs):
            losses = [self.step(i) for i in torch.randperm(N_TRAIN).split(16)]
            print(f"epoch {epoch} bce {sum(losses) / len(losses):.4f}")
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
            return dice(self.model(self.val_x), self.val_y)


if __name__ == "__main__":
    print(f"val_dice {Experiment().run():.4f}")
