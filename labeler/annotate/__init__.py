"""The annotator's page: session, routes, HTML, scripts and styles."""
