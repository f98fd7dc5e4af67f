# step_with_gradients()
def update(scaler, optimizers):
    for optimizer in optimizers:
        if any(p.grad is not None for g in optimizer.param_groups for p in g["params"]):
            scaler.step(optimizer)  # here
    scaler.update()
