# labels_from_zero()
loss = F.cross_entropy(model(x), y)  # here
