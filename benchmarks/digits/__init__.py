"""Whether ``hg.rounding`` predicts errors, is silent on healthy steps, and names the right line."""
