# step_with_gradients()
def update(scaler, optimizers):
    for optimizer in optimizers:
        scaler.step(optimizer)  # here
    scaler.update()
