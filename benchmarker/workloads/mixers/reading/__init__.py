"""How records of token mixers are read."""
