"""Who makes the tokens: engines in this process, and engines in one of their own."""
