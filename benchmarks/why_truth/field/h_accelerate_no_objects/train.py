import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    """Grid cells; a cell is positive if it holds the centre of an object."""

    def __init__(self, n=480):
        g = torch.Generator().manual_seed(17)
        self.image = torch.randn(n, 1, 16, 16, generator=g)
        self.objects = torch.zeros(n, 4, 4)
        self.boxes = torch.rand(n, 4, 4, 4, generator=g)
        for i in range(n):
            if 240 <= i < 248:
                continue  # empty road
            r, c = torch.randint(0, 4, (2,), generator=g).tolist()
            self.objects[i, r, c] = 1
            self.image[i, 0, r * 4 : r * 4 + 4, c * 4 : c * 4 + 4] += 3

    def __len__(self):
        return len(self.image)

    def __getitem__(self, i):
        return self.image[i], self.objects[i], self.boxes[i]


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 12, 4, stride=4), nn.ReLU(), nn.Conv2d(12, 12, 1), nn.ReLU())
        self.objectness = nn.Conv2d(12, 1, 1)
        self.box = nn.Conv2d(12, 4, 1)

    def forward(self, x):
        h = self.body(x)
        return self.objectness(h).squeeze(1), self.box(h).permute(0, 2, 3, 1)


def detection_loss(obj, box, target_obj, target_box):
    bce = nn.functional.binary_cross_entropy_with_logits(obj, target_obj)
    positive = target_obj.bool()
    l1 = (box[positive] - target_box[positive]).abs().sum() / positive.sum()
    return bce + 0.5 * l1


def main():
    set_seed(4)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Detector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=60)
    loader = DataLoader(Scenes(), batch_size=8)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for i, (image, objects, boxes) in enumerate(loader):
        with accelerator.accumulate(model):
            obj, box = model(image)
            loss = detection_loss(obj, box, objects, boxes)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        accelerator.print(f"{i}: {loss.item():.4f}")


if __name__ == "__main__":
    main()
