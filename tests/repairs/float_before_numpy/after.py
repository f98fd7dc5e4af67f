# float_before_numpy()
scores = (left + right).float().numpy(force=True)  # here
