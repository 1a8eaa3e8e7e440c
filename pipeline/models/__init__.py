"""Language models: where they are found and computed, text to tokens, completions and likelihoods."""
