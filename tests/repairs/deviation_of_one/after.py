# deviation_of_one()
y = (r - r.mean()) / (r.std(correction=min(1, r.numel() - 1)) + 1e-6)  # here
