"""One step on the device: backward, measure, decide, apply or restore."""
