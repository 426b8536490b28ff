"""What this machine can run, and for each no the one thing to do about it."""
