"""Values of files: experiments, jobs and records. Imports no torch."""
