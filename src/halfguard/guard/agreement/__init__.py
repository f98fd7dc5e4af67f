"""Agreement between ranks: one decision for all, and a joint investigation when a step goes wrong."""
