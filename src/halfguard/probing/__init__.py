"""Before training: the range of every layer, what will break in 16 bits, and the plan that prevents it."""
