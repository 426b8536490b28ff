"""The forms of a model: one file a quantization, and how one is loaded."""
