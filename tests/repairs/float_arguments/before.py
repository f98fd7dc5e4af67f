# float_arguments(error="mat1 and mat2 must have the same dtype, but got Half and Float")
score = head(hidden).squeeze(-1)  # here
