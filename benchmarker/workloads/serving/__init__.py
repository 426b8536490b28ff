"""A model server under load."""
