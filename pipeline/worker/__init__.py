"""The process that runs one stage: ``python -m pipeline.worker RUN_DIR``."""
