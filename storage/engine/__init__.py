"""The database engine: transactions, journal, migrations, backup.  No labeling logic."""
