"""Public sets of bugs that others collected, run from a local checkout; nothing of them is kept here."""
