# loss_per_micro_batch()
for batch in loader:
    for part in range(PARTS):
        loss = model(batch[part])
        (loss / PARTS).backward()  # here
    optimizer.step()
