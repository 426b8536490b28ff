"""Text generation: a quantization of a model in an engine."""
