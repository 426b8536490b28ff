"""Where weights come from: the hub, a folder, the cache, or random numbers."""
