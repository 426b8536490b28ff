"""The commands of `benchmarker`, one module each."""
