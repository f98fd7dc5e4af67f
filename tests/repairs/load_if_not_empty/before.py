# load_if_not_empty()
scaler.load_state_dict(checkpoint["scaler"])  # here
