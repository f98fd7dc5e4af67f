# step_by_scaler(scaling=scaled)
for x in loader:
    scaler.scale(model(x)).backward()  # scaled
    scaler.step(optimizer)  # here
    scaler.update()
