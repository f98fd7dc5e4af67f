"""Rules by subject; each is a function with the decorator ``rule``."""
