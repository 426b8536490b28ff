"""Reading of the records of operations: explanations, and sentences on several lengths."""
