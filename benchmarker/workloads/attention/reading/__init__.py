"""How records of attention are read."""
