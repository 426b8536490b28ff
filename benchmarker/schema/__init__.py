"""What goes into a file and comes out of one: experiments, records, their facts. Needs no torch."""
