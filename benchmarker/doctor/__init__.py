"""`benchmarker doctor`: the variants that run on this machine, and checks of its instruments."""
