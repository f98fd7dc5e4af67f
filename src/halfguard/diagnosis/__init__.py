"""What a machine, a configuration and a model will really do in 16 bits, told before training."""
