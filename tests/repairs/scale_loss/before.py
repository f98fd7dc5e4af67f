# scale_loss(scaler="scaler")
for x, y in loader:
    loss = loss_fn(model(x), y)
    loss.backward()  # here
    scaler.step(optimizer)
    scaler.update()
