"""How records of fine-tuning are read: compared, explained and shown."""
