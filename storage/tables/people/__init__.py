"""Who uses a workspace: annotators, other sign-ins, pseudonyms and access tokens."""
