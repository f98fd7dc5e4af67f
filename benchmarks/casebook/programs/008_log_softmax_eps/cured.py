import torch
import torch.nn as nn

torch.manual_seed(5)
N_CLASS = 50
x = torch.randn(2000, 40)
w_true = torch.randn(40, N_CLASS)
y = (x @ w_true).argmax(1)

net = nn.Sequential(nn.Linear(40, 128), nn.GELU(), nn.Linear(128, N_CLASS))
net[2].weight.data.mul_(30)  # start a bit sharper, it speeds things up in fp32
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")


def nll(logits, target):
    logp = torch.log_softmax(logits, dim=1)
    return -logp.gather(1, target[:, None]).mean()


for epoch in range(5):
    order = torch.randperm(len(x))
    losses = []
    for b in range(0, len(x), 100):
        idx = order[b : b + 100]
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nll(net(x[idx]), y[idx])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        losses.append(loss.item())
    print("epoch", epoch, "loss", sum(losses) / len(losses))
