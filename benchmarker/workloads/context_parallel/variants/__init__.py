"""Ways to split a sequence over ranks."""
