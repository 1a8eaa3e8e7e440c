"""The Team page: people, how they judge, and what they are asked."""
