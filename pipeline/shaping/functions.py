"""``python -m pipeline.shaping.functions NAME…``: can these functions be shaping components?

`pipeline.config.plugins.require_in_subprocess` asks it, and reads its answer.
"""

import sys

from pipeline.config.plugins import print_refusal
from pipeline.shaping import imported

if __name__ == "__main__":
    print_refusal(sys.argv[1:], imported)
