"""The self-test: operations in each format against float64, within what rounding allows."""
