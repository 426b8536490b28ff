"""benchmarker: which quantization should I run on my GPU, and why is it fast or slow?"""

__version__ = "0.1.0"
