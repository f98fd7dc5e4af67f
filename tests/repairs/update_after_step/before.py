# update_after_step()
for i, x in enumerate(loader):
    scaler.scale(model(x)).backward()
    if i % 4 == 3:
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()  # here
