"""Language models: loading, devices, tokenization, sampling and likelihoods."""
