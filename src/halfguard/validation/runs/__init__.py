"""One run: what determines it, and how it is carried out in the process it was given to."""
