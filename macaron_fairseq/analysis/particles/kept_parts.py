"""Long work in parts that are kept, so that a run that was ended goes on where it was."""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from macaron_fairseq.analysis import output
from macaron_fairseq.common import files, locks
from macaron_fairseq.common.errors import UserError

SETTINGS = "settings.json"
LOCK = "run.lock"

PartOf = Callable[[str, Callable[[], Any]], Any]  # as `KeptParts.part`


def keep_nothing(name: str, compute: Callable[[], Any]) -> Any:
    """What `KeptParts.part` gives, where nothing is kept."""
    return compute()


class KeptParts:
    """The parts of one run, a JSON file for each, written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        """Name the folder of the parts, in that of the results; nothing is written yet."""
        self.folder = folder
        self.is_first = not folder.parent.exists()
        self.held: IO[bytes] | None = None

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Start a run with these settings, or go on with one that had the same.

        Raises:
            UserError: if the folder holds parts of other settings, or something else, or another
                process is at work there.
        """
        if not self.is_own():
            raise UserError(f"{self.folder} is in the way: move it, or choose another --output")
        self.claim()
        try:
            self.take_up(settings)
        except UserError:
            self.release()
            raise

    def take_up(self, settings: Mapping[str, Any]) -> None:
        """Write the settings, or see that those of the parts are the same."""
        wanted = json.loads(output.as_json(settings))
        hint = f"to start anew, remove the folder {self.folder}"
        if not (self.folder / SETTINGS).exists():
            files.write(self.folder / SETTINGS, output.as_json(settings))
            return
        found = files.read_json(self.folder / SETTINGS, {}, hint)
        for name in sorted(wanted.keys() | found.keys()):
            if wanted.get(name) != found.get(name):
                was, now = (json.dumps(x.get(name))[:60] for x in (found, wanted))
                raise UserError(
                    f"{self.folder} holds parts of a run that was ended, whose {name} was {was} "
                    f"and not {now}: give the same to go on; {hint}"
                )
        done = len([*self.folder.glob("*.json")]) - 1
        print(f"{self.folder}: goes on after {done} parts", file=sys.stderr, flush=True)

    def is_own(self) -> bool:
        """Whether the folder is there for parts, or not there."""
        try:
            found = {path.name for path in self.folder.iterdir()}
        except FileNotFoundError:
            return True
        except NotADirectoryError:
            return False
        return SETTINGS in found or found <= {LOCK, f"{SETTINGS}.part"}

    def claim(self) -> None:
        """Keep other processes out until this one has removed the parts, or ends."""
        try:
            self.held = locks.hold(self.folder / LOCK)
        except locks.NoLocksError:
            return
        except OSError as error:
            raise UserError(f"cannot write {self.folder}: {error.strerror}") from error
        if not self.held:
            raise UserError(
                f"another process writes to {self.folder}: wait until it ends, or choose another "
                "--output"
            )

    def part(self, name: str, compute: Callable[[], Any]) -> Any:
        """The part of that name: what is kept, or else what `compute` gives, which is then kept.

        Plain data as JSON holds it; numbers come back as they were, to the last bit.

        Raises:
            UserError: if the file is no JSON, or cannot be written.
        """
        path = self.folder / f"{name}.json"
        if path.exists():
            return files.load_json(path, f"remove the folder {self.folder}")
        found = compute()
        files.write(path, json.dumps(found))
        return found

    def remove(self) -> None:
        """Forget the parts, if there are any: the run has come to its end, or never will."""
        if (self.folder / SETTINGS).exists():
            # The lock comes last, or another process would lock a new one and go on with parts.
            for path in sorted(self.folder.iterdir(), key=lambda x: x.name == LOCK):
                with suppress(OSError):
                    path.unlink()
            self.release()
            with suppress(OSError):
                self.folder.rmdir()
                if self.is_first:  # and holds no results
                    self.folder.parent.rmdir()

    def release(self) -> None:
        """Let other processes in."""
        if self.held:
            self.held.close()
