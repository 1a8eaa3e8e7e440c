"""``python -m pipeline.worker RUN_DIR``: do the job of one run directory."""

# ruff: noqa: E402
import gc

# Imports make a million objects and no garbage; looking for some takes a fifth of the time.  The worker
# enables collections when it has imported its stage.
gc.disable()

import sys

from pipeline.worker.worker import main

status = main()
# The last collection of Python would visit all objects of torch, which takes more than a second.
gc.freeze()
sys.exit(status)
