"""Training loops that skip bad steps, each in the form in which people use it."""
