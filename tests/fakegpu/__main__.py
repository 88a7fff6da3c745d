"""`python tests/fakegpu COMMAND ...`: a console script of this environment with the fake GPU.

A file named in FAKEGPU_COUNTS gets, as JSON, what was counted until the end.
"""

import json
import os
import runpy
import sys
from importlib.metadata import entry_points
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import fakegpu

name = sys.argv[1]
sys.argv = sys.argv[1:]
try:
    if name.endswith(".py"):
        sys.path.insert(0, str(Path(name).parent))
        runpy.run_path(name, run_name="__main__")
    else:
        (script,) = entry_points(group="console_scripts", name=name)
        sys.exit(script.load()())
finally:
    if path := os.environ.get("FAKEGPU_COUNTS"):
        Path(path).write_text(json.dumps(fakegpu.counts()), "utf-8")
