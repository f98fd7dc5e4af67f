# deviation_of_one()
y = (r - r.mean()) / (r.std() + 1e-6)  # here
