"""PPO, ours and TRL's last, on the same work."""
