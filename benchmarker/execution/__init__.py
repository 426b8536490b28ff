"""One run: a job is made, carried out and recorded."""
