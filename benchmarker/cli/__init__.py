"""What can be typed after `benchmarker`: a file a verb. Each checks its arguments, calls the core, and prints."""
