"""Anchor based box regression: decode, IoU loss."""
import torch
import torch.nn as nn

ANCHOR_W = ANCHOR_H = 16.0


def decode(raw, centers):
    tx, ty, tw, th = raw.unbind(-1)
    cx = centers[:, 0] + tx * ANCHOR_W
    cy = centers[:, 1] + ty * ANCHOR_H
    w = torch.exp(tw) * ANCHOR_W
    h = torch.exp(th) * ANCHOR_H
    return torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], dim=-1)


def iou_loss(pred, gt, eps=1e-3):
    lt = torch.maximum(pred[:, :2], gt[:, :2])
    rb = torch.minimum(pred[:, 2:], gt[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    area_p = (pred[:, 2:] - pred[:, :2]).clamp(min=0).prod(-1)
    area_g = (gt[:, 2:] - gt[:, :2]).prod(-1)
    iou = (inter + eps) / (area_p + area_g - inter + eps)
    return (1 - iou).mean()


class Head(nn.Module):
    def __init__(self, d=20):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.box = nn.Linear(64, 4)
        self.obj = nn.Linear(64, 1)

    def forward(self, feats):
        h = self.trunk(feats)
        return self.box(h), self.obj(h).squeeze(-1)


class Scene:
    def __init__(self):
        self.g = torch.Generator().manual_seed(4)
        self.mix = torch.randn(4, 20, generator=self.g)

    def sample(self, n, step):
        centers = torch.rand(n, 2, generator=self.g) * 200
        wh = torch.exp(torch.randn(n, 2, generator=self.g) * 0.6) * 16
        off = torch.randn(n, 2, generator=self.g) * 0.3
        gt = torch.cat([centers + off * 16 - wh / 2, centers + off * 16 + wh / 2], -1)
        code = torch.cat([off, torch.log(wh / 16)], -1)
        feats = code @ self.mix + 0.05 * torch.randn(n, 20, generator=self.g)
        if step % 37 == 30:
            feats[0] *= 60  # crop with blown-out exposure
        return feats, centers, gt


def main():
    torch.manual_seed(0)
    scene, model = Scene(), Head()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    bce = nn.BCEWithLogitsLoss()
    for step in range(200):
        feats, centers, gt = scene.sample(32, step)
        with torch.autocast("cpu", dtype=torch.float16):
            raw, obj = model(feats)
            boxes = decode(raw, centers)
            loss_box = iou_loss(boxes, gt) + 0.05 * (boxes - gt).abs().mean()
            loss = loss_box + bce(obj.float(), torch.ones(32))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        if step % 10 == 0:
            print(f"step={step} loss={loss.item():.4f} box={loss_box.item():.4f}")


if __name__ == "__main__":
    main()
