# add_to_prepare()
model, optimizer = accelerator.prepare(model, optimizer)
for batch in loader:
    accelerator.backward(model(batch))
    optimizer.step()
    scheduler.step()  # here
