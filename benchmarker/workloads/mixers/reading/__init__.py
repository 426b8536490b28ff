"""Reading of the records of mixers: explanations and sentences."""
