"""The researchers' HTTP interface: routes that do what the pages and the commands do."""
