"""Compares this engine with TRL's last PPOTrainer on the same workload."""
