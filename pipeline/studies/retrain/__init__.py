"""A reward model trained again without some of its judgments, and compared with the original."""
