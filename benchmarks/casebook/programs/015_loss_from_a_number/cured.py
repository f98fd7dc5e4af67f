import torch
import torch.nn as nn
import torch.nn.functional as F


class Segmentor(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Conv2d(3, 8, 3, padding=1)
        self.decode_head = nn.Conv2d(8, 4, 1)
        self.aux_head = nn.Conv2d(8, 4, 1)

    def forward_train(self, img, gt):
        x = F.relu(self.backbone(img))
        return {
            "decode.loss_ce": F.cross_entropy(self.decode_head(x), gt),
            "aux.loss_ce": 0.4 * F.cross_entropy(self.aux_head(x), gt),
        }


def parse_losses(losses):
    log_vars = {k: v.item() for k, v in losses.items()}
    total = sum(losses.values())
    log_vars["loss"] = total.item()
    return total, log_vars


torch.manual_seed(0)
model = Segmentor()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for it in range(20):
    img = torch.rand(4, 3, 16, 16)
    gt = (img.mean(1) * 4).long().clamp(max=3)
    with torch.autocast("cpu", dtype=torch.float16):
        losses = model.forward_train(img, gt)
        loss, log_vars = parse_losses(losses)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print("Iter [%d/20] loss: %.4f" % (it, log_vars["loss"]))
