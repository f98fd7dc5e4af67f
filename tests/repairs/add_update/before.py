# add_update()
for i, x in enumerate(loader):
    scaler.scale(model(x)).backward()
    scaler.step(optimizer)  # here
    if i == last:
        scaler.update()
        print("last")
