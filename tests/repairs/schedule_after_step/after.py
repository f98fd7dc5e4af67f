# schedule_after_step()
for x in loader:
    scaler.scale(model(x)).backward()
    scale_before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale_before:
        scheduler.step()  # here
