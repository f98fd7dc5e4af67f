"""A machine or a card: its facts, the behaviour of each precision there, and the one to choose."""
