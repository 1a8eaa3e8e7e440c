"""Run directories, through which the web process and a worker communicate, and worker processes."""
