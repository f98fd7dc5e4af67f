"""One step: backward, measure, decide on the device, apply or restore."""
