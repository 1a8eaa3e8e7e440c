"""The reward model: a Bradley-Terry likelihood with ties and annotators, its members and training."""
