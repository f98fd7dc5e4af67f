# undivided_loss()
for x in data:
    with accelerator.accumulate(model):
        accelerator.backward(model(x).mean())  # here
        optimizer.step()
