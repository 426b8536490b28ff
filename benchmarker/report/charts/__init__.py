"""Pictures of a comparison: each is made from the rows that the tables show, or is left out where nothing is known."""
