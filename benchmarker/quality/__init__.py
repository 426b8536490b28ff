"""What quantization costs in quality: perplexity, and divergence from the unquantized model, on the same text."""
