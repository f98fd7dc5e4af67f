"""The hardware: a table of accelerators, this machine's devices, and the precision to choose for each."""
