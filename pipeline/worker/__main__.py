"""``python -m pipeline.worker RUN_DIR``: do the job of one run directory."""

import gc
import sys

from pipeline.worker.worker import main

status = main()
# Python's last garbage collection would visit all objects of torch, which takes more than a second.
gc.freeze()
sys.exit(status)
