"""Authentication and authorization: sessions, passwords, addresses, and the access check."""
