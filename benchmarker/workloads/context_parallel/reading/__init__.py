"""How records of context parallel attention are read."""
