import torch
import torch.nn.functional as F
from torch import nn
from accelerate import Accelerator

acc = Accelerator(cpu=True, mixed_precision="fp16")
acc.native_amp = True
acc.scaler = torch.amp.GradScaler("cpu")
torch.manual_seed(0)


class StyleLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.vgg = nn.Conv2d(3, 16, 3, padding=1).requires_grad_(False)

    def gram(self, img):
        f = F.relu(self.vgg(img)).flatten(2)
        f = f / f.size(2) ** 0.5
        g = torch.bmm(f, f.transpose(1, 2))
        return g

    def forward(self, a, b):
        return F.l1_loss(self.gram(a), self.gram(b)) / 1e3


style = StyleLoss()
net = nn.Conv2d(3, 3, 3, padding=1)
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
net, opt, style = acc.prepare(net, opt, style)
content = torch.rand(4, 3, 32, 32) * 255
reference = torch.rand(4, 3, 32, 32).round() * 255

for step in range(40):
    with acc.autocast():
        out = net(content)
        loss = style(out, reference)
    acc.backward(loss)
    opt.step()
    opt.zero_grad()
    if step % 4 == 0:
        print(f"step {step:3d} style loss {loss.item():.4f}")
