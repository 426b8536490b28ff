"""What a sweep is made of: the plan, the children and their time-outs, the folder with its lock, the faults."""
