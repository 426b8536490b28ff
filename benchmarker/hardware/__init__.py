"""The device, its driver and the machine around it."""
