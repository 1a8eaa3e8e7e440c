"""Files into records: read, checked row by row, planned beside the writer, stored in one transaction."""
