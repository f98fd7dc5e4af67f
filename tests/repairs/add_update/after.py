# add_update()
for i, x in enumerate(loader):
    scaler.scale(model(x)).backward()
    scaler.step(optimizer)  # here
    scaler.update()
    if i == last:
        print("last")
