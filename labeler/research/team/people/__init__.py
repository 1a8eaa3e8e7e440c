"""The People section: accounts, agreement and reliability."""
