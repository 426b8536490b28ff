"""Quality of a quantized model: perplexity, divergence from the unquantized model, and accuracy on tasks."""
