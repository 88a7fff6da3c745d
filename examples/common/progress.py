"""Show the progress of a fairseq-train whose JSON log comes on standard input, and keep the log.

usage: fairseq-train ... --log-format json 2>&1 | python progress.py NAME LOGFILE
"""

import json
import re
import sys
from collections import deque
from pathlib import Path
from typing import Any

from tqdm import tqdm


def numbers(line: str) -> dict[str, Any]:
    """The figures of a line of fairseq's JSON log; none of other or garbled lines."""
    found = re.search(r"\| (?:train_inner|train|valid) \| (\{.*\})", line)
    try:
        return json.loads(found[1]) if found else {}
    except ValueError:
        return {}


def updates_wanted(line: str) -> int | None:
    """The value of --max-update, from the line in which fairseq prints its configuration."""
    found = re.search(r"'max_update': (\d+)", line)
    return int(found[1]) if found else None


def resumed_from(line: str) -> int | None:
    """The updates done before, from the line in which fairseq says that it loaded a checkpoint."""
    found = re.search(r"Loaded checkpoint .* @ (\d+) updates\)", line)
    return int(found[1]) if found else None


def is_of_a_failed_process(line: str) -> bool:
    """Whether torchrun begins here to tell that a process failed."""
    return "torch/distributed/elastic/multiprocessing/api.py" in line and "failed (exit" in line


def main() -> None:
    """Copy standard input to the log; a bar on a terminal, a line now and then elsewhere."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    name, path = sys.argv[1:]
    tail: deque[str] = deque(maxlen=20)
    finished = is_torchruns = False
    bar = tqdm(
        desc=name, unit=" updates", mininterval=0.5 if sys.stderr.isatty() else 20, smoothing=0.05
    )
    # What is not UTF-8 is kept as it is.
    with Path(path).open("a", encoding="utf-8", errors="surrogateescape") as log:
        for line in sys.stdin:
            log.write(line)
            log.flush()
            is_torchruns = is_torchruns or is_of_a_failed_process(line)
            if not is_torchruns:  # many lines that only repeat it
                tail.append(line)
            bar.total = updates_wanted(line) or bar.total
            if done := resumed_from(line):
                bar.reset()  # the speed is that of this start
                bar.initial = bar.n = bar.last_print_n = done
            figures = numbers(line)
            if "num_updates" in figures and "loss" in figures:
                bar.n = int(figures["num_updates"])
                bar.set_postfix_str(f"loss {figures['loss']}, {figures['wps']} words/s", False)
                bar.update(0)
            finished = finished or "done training" in line
    bar.close()
    if not finished:
        sys.exit(f"{name}: training ended early; the end of {path}:\n{''.join(tail)}")


if __name__ == "__main__":
    main()
