# undivided_loss()
for x in data:
    with accelerator.accumulate(model):
        accelerator.backward(model(x).mean() / 8)  # here
        optimizer.step()
