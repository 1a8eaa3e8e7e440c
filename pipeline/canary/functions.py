"""``python -m pipeline.canary.functions NAME``: checks a function named in gate.canary.

`pipeline.config.plugins.require_in_subprocess` runs it and reads its output.
"""

import sys

from pipeline.canary.checks import load_canary
from pipeline.config.plugins import print_refusal

if __name__ == "__main__":
    print_refusal(sys.argv[1:], load_canary)
