"""Who is asking and what they may do: sessions, passwords, addresses, one middleware before every route."""
