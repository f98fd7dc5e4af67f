"""A machine or a card: what is read, what each precision does there, and which one to choose."""
