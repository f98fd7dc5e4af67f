# leave_out_step()
for x in loader:
    scaler.scale(model(x)).backward()
    scaler.step(optimizer)
    optimizer.step()  # here
    scaler.update()
