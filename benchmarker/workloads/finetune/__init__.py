"""Fine-tuning: one training step of a whole model, in the recipes that people choose from."""
