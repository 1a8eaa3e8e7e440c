"""``python -m pipeline.shaping.functions NAME…``: can these functions be shaping components?

`pipeline.config.plugins.require_in_a_process` asks it, and reads its answer.
"""

import sys

from pipeline.config.plugins import answer
from pipeline.shaping import imported

if __name__ == "__main__":
    answer(sys.argv[1:], imported)
