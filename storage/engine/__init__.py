"""The database engine: transactions, journal, migrations, backup.  It knows records, and no
labeling."""
