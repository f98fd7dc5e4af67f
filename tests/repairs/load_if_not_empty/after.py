# load_if_not_empty()
if checkpoint["scaler"]:
    scaler.load_state_dict(checkpoint["scaler"])  # here
