"""From rows to records: what each kind of import adds to the database."""
