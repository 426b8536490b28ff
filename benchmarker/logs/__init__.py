"""Reading other programs' logs and printed profiler tables."""
