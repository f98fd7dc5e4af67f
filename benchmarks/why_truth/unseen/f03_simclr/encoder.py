from torch import nn


class Encoder(nn.Module):
    """Small MLP encoder with a ReLU projection head."""

    def __init__(self, d_in=32, width=64, d_out=16):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(d_in, width, bias=False), nn.ReLU(),
            nn.Linear(width, width, bias=False), nn.ReLU())
        self.project = nn.Sequential(nn.Linear(width, d_out, bias=False), nn.ReLU())

    def forward(self, x):
        return self.project(self.backbone(x))
