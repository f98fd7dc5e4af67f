# unscale_once()
for i, x in enumerate(loader):
    scaler.scale(model(x) / 4).backward()
    scaler.unscale_(optimizer)  # here
    clip_grad_norm_(parameters, 1.0)
    if i % 4 == 3:
        scaler.step(optimizer)
        scaler.update()
