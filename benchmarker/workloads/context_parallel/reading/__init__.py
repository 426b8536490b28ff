"""Reading of the records of context_parallel: explanations and sentences."""
