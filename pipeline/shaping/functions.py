"""``python -m pipeline.shaping.functions NAME…``: checks functions named as shaping components.

`pipeline.config.plugins.require_in_subprocess` runs it and reads its output.
"""

import sys

from pipeline.config.plugins import print_refusal
from pipeline.shaping import imported

if __name__ == "__main__":
    print_refusal(sys.argv[1:], imported)
