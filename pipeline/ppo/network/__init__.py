"""The trained networks: actor and critic, LoRA, packing, token log-probabilities, several processes."""
