"""One run: the data that determines it, and the code that executes it in a worker process."""
