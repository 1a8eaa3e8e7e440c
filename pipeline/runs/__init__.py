"""Run directories: the files through which the web process and a worker talk, and worker processes."""
