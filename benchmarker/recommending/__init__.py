"""Name the one variant that fits a budget, or say why none can be named."""
