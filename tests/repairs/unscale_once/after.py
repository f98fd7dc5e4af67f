# unscale_once()
for i, x in enumerate(loader):
    scaler.scale(model(x) / 4).backward()
    if i % 4 == 3:
        scaler.unscale_(optimizer)
        clip_grad_norm_(parameters, 1.0)
        scaler.step(optimizer)
        scaler.update()
