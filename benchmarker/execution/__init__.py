"""One run: make a job, execute it, and record the result."""
