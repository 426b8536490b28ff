"""The measuring core: repeats, memory, energy, the device's peaks, the profiler."""
