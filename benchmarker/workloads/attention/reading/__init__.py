"""Reading of the records of attention: explanations and sentences."""
