"""Workers of a sweep: children of this process, cards of this host, or tasks on a Ray cluster."""
