"""Imported last by the process that workers are forked from: as tests/conftest.py does for tests."""

import atexit
import gc

gc.freeze()
atexit.register(gc.unfreeze)
