# zero_gradients()
for x in loader:
    scaler.scale(model(x)).backward()
    scaler.step(optimizer)  # here
    scaler.update()
