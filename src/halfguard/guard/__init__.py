"""Guard a training run: decide at every step, on the device, whether the update may be applied."""
