# add_to_prepare()
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
for batch in loader:
    accelerator.backward(model(batch))
    optimizer.step()
    scheduler.step()  # here
