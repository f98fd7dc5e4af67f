"""What each framework does to a forward pass, one framework a file; none of them is imported here."""
