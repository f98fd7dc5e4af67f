# update_before_continue()
for x in loader:
    scaler.scale(model(x)).backward()  # here
    if bad(model):
        scaler.step(optimizer)
        scaler.update()
        continue
    scaler.step(optimizer)
    scaler.update()
