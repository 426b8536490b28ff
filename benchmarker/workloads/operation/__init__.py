"""Base of the workloads that time one call of an operation on sequences: attention, mixers, context_parallel."""
