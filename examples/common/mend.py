"""Replace a checkpoint_last.pt that was cut short by the newest whole checkpoint of its folder.

fairseq writes it by copying: a kill in that moment leaves half of it, and no training resumes from
that. It is kept as checkpoint_last.pt.cut. Any other fault is left for fairseq-train to report.

usage: mend.py RUN
"""

import shutil
import sys
import zipfile
from pathlib import Path


def is_whole(path: Path) -> bool:
    """Whether it is what PyTorch writes: a zip archive, whose directory comes last."""
    with path.open("rb") as file:
        begins = file.read(2)
    if begins and not b"PK".startswith(begins):
        return True  # an older format, which is not judged
    return zipfile.is_zipfile(path)


def main() -> None:
    """Mend the folder, and say so."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run = Path(sys.argv[1])
    last = run / "checkpoint_last.pt"
    if not last.exists() or is_whole(last):
        return
    last.rename(cut := run / "checkpoint_last.pt.cut")
    others = sorted(run.glob("checkpoint*.pt"), key=lambda path: path.stat().st_mtime)
    whole = next((path for path in reversed(others) if is_whole(path)), None)
    if whole is None:
        print(f"{last} was cut short (kept as {cut.name}), and no other is whole: starting anew")
        return
    print(f"{last} was cut short (kept as {cut.name}): going on from {whole.name}")
    copy = run / "checkpoint_last.pt.part"
    shutil.copy(whole, copy)
    copy.replace(last)


if __name__ == "__main__":
    main()
