"""The script of an evidence package: recomputes its figures and prints what differs.

It is copied to the top of the package, beside `code/` with the other modules.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.dont_write_bytecode = True  # a new file would differ from the digests
    sys.path.insert(0, str(here / "code"))

    from pipeline.evidence.sums import CODE, SUMS, changed_files

    lines, good = changed_files(here), False
    if any(line.startswith(CODE) for line in lines):
        lines.append(f"CHANGED: files against {SUMS}; changed code computes no figures")
    else:
        from pipeline.evidence.check import check

        lines, good = check(here)
    sys.stdout.write("\n".join([*lines, ""]))
    sys.exit(0 if good else 1)
