"""The Annotators tab: accounts, agreement and reliability."""
