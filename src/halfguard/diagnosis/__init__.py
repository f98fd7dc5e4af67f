"""Find out, before training, what a machine, a configuration and a model do in 16 bits."""
