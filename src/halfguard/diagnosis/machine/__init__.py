"""A report on a machine or a card: the behaviour of each precision there, measured, and problems."""
