"""Who is asking and what they may do: sessions, passwords, addresses, one gate before every route."""
