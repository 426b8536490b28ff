"""Base of the workloads that time a training step: finetune and mixers."""
