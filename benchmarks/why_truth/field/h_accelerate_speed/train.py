"""Predict the motion vector of vehicles; the speed is the only label."""
import logging
import sys

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.logging import get_logger
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(message)s")
logger = get_logger(__name__)


class MotionNet(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.gate = nn.Linear(features, 2, bias=False)
        self.motion = nn.Linear(features, 2, bias=False)

    def forward(self, x):
        return torch.sigmoid(self.gate(x)) * self.motion(x)


def speed_loss(vector, target):
    speed = torch.sqrt((vector ** 2).sum(dim=1))
    return nn.functional.huber_loss(speed, target)


def tracks(n=1600, features=6):
    g = torch.Generator().manual_seed(50)
    x = torch.randn(n, features, generator=g)
    x[1173] = 0.0  # parked: no optical flow at all
    speed = torch.hypot(x[:, 1] + 0.3 * x[:, 2], x[:, 0])
    return TensorDataset(x, speed)


class Training:
    def __init__(self):
        self.accelerator = Accelerator(cpu=True)
        torch.manual_seed(2)
        model = MotionNet(6)
        optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
        loader = DataLoader(tracks(), batch_size=10)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.step = 0

    def epoch(self):
        for x, speed in self.loader:
            loss = speed_loss(self.model(x), speed)
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
            if self.step % 20 == 0:
                logger.info(f"step {self.step} loss {loss.item():.4f}")


if __name__ == "__main__":
    Training().epoch()
