# add_scaler(made=Region(optimizer, region, "cpu"), scale=1024.0)
import torch

optimizer = torch.optim.SGD(net.parameters(), lr=0.1)  # optimizer
scaler = torch.amp.GradScaler(device, init_scale=1024.0)
for x, y in loader:
    with torch.autocast(device, dtype=torch.float16):  # region
        loss = loss_fn(net(x), y)
    scaler.scale(loss).backward()  # here
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
