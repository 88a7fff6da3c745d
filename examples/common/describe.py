"""Write preprocessing.json: how the text of a data folder was made, for who translates with it.

usage: describe.py DATA SOURCE TARGET STEP,STEP,... TEST...
"""

import hashlib
import json
import sys
from pathlib import Path


def fingerprint(data_bin: Path) -> str:
    """A checksum of all that fairseq reads, whatever made it."""
    digest = hashlib.sha256()
    for path in sorted(p for p in data_bin.iterdir() if p.suffix != ".log"):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def main() -> None:
    """Write the file."""
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    data, source, target, steps, *tests = sys.argv[1:]
    description = {
        "source": source,
        "target": target,
        "source_steps": steps.split(","),
        "target_steps": steps.split(","),
        "tests": tests,
        "fingerprint": fingerprint(Path(data) / "data-bin"),
    }
    Path(data, "preprocessing.json").write_text(json.dumps(description, indent=1) + "\n")


if __name__ == "__main__":
    main()
