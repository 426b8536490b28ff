"""Sources of weights: the hub, a folder, the cache, or random numbers."""
