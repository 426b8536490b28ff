"""Context parallel attention: one sequence over several GPUs."""
