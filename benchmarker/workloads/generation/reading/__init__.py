"""How records of text generation are compared and shown: what is beyond the declared axes and metrics."""
