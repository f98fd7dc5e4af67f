# float_before_numpy()
scores = (left + right).numpy(force=True)  # here
