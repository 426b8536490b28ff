"""Text generation: what one repeat is, its prompts and what its work cannot do without."""
