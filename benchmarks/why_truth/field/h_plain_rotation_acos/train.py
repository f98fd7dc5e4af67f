# Pose regression: predict a unit quaternion, train with the geodesic angle.
import logging
import math

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("pose")

BATCH = 32
STEPS = 160


class PoseHead(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.residual = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 4))
        # start from the sensor's own estimate
        nn.init.zeros_(self.residual[2].weight)
        nn.init.zeros_(self.residual[2].bias)
        self.gate = nn.Parameter(torch.tensor(1.0))

    def forward(self, q):
        moving = (q[:, 0] < 1.0).float().unsqueeze(1)
        q = q + self.gate * moving * self.residual(q)
        return q / q.norm(dim=1, keepdim=True)


def geodesic(pred, target):
    dot = (pred * target).sum(dim=1).abs().clamp(max=1.0)
    angle = 2.0 * torch.acos(dot)
    return angle.mean()


def sample_batch(step, generator):
    axis = torch.randn(BATCH, 3, generator=generator)
    axis = axis / axis.norm(dim=1, keepdim=True)
    angle = torch.rand(BATCH, 1, generator=generator) * math.pi * 0.5 + 0.3
    target = torch.cat([torch.cos(angle / 2), torch.sin(angle / 2) * axis], dim=1)
    noisy = target + 0.05 * torch.randn(BATCH, 4, generator=generator)
    if step == 90:
        # the recording holds a few frames in which the device lies still
        target[:3] = torch.tensor([1.0, 0.0, 0.0, 0.0])
        noisy[:3] = target[:3]
    return noisy, target


def train():
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(4)
    model = PoseHead()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    sched = CosineAnnealingLR(opt, T_max=STEPS)
    for step in range(1, STEPS + 1):
        noisy, target = sample_batch(step, generator)
        loss = geodesic(model(noisy), target)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            log.info("step %d  angle %.4f rad  lr %.2e", step, loss.item(), sched.get_last_lr()[0])


train()
