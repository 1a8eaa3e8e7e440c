"""The Publish section: a model as a repository of the Hugging Face hub."""
