# scale_loss(scaler="scaler")
for x, y in loader:
    loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()  # here
    scaler.step(optimizer)
    scaler.update()
