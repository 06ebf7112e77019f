"""The demo's author for `--agent command`: reads the prompt, edits its workspace, prints its five-key answer.

Stands where an agent CLI would: started by the adapter in the unit's private worktree, prompt on stdin.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

from _demo_units import UNITS, answer, as_shell


def main() -> int:
    asked = re.search(r"^# Unit (\S+)$", sys.stdin.read(), re.MULTILINE)
    unit = UNITS.get(asked[1]) if asked else None
    if unit is None:
        print("the prompt names no unit that this author knows", file=sys.stderr)
        return 1
    subprocess.run(["sh", "-c", as_shell(unit)], check=True)
    print(json.dumps(answer(unit)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
