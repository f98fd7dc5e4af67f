"""What ranks agree on at a step, and what they find out together when one goes wrong."""
