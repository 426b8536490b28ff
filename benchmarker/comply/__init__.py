"""Self-tests of the measurements on the user's own machine."""
