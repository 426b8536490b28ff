"""Reading of the records of finetune: explanations and sentences."""
