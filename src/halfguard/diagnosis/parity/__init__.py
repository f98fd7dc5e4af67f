"""The self-test: compare operations in each format with float64, within the error that rounding allows."""
