"""``python -m pipeline.worker RUN_DIR``: do the job of one run directory."""

import sys

from pipeline.worker.worker import main

sys.exit(main())
