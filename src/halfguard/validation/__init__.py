"""After training: is 16 bits as good as 32, with a number for the doubt."""
