"""The ways to split a sequence over ranks, one file each."""
