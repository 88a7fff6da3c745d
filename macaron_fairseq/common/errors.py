"""The exception for what a user can mend."""

import errno
from collections.abc import Callable
from typing import Any, NoReturn

# Characters that control a terminal, or the direction of text, by what is shown of them.
CONTROLS = {*range(32), *range(127, 160), 0x61C, 0x200E, 0x200F} - {ord("\n"), ord("\t")}
CONTROLS |= {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}
ESCAPES = {x: chr(x).encode("unicode_escape").decode() for x in CONTROLS}


class UserError(SystemExit, ValueError):
    """A mistake in flags, files or data; its text is one sentence that names the fix.

    As a `SystemExit` it ends a command with that sentence and status 1, and without a traceback.
    This works in fairseq's commands too, which the plugin does not own. A program can catch it as a
    `ValueError`. What would control a terminal is shown as an escape: a sentence may quote a file.
    """

    def __init__(self, sentence: object = "") -> None:
        """Take the sentence."""
        super().__init__(str(sentence).translate(ESCAPES))


def check_all(*checks: Callable[[], Any]) -> list[Any]:
    """What the checks return.

    Raises:
        UserError: with a line for each mistake that they find.
    """
    results, mistakes = [], []
    for check in checks:
        try:
            results.append(check())
        except UserError as error:
            mistakes.append(str(error))
    if mistakes:
        raise UserError("\n".join(mistakes))
    return results


def explain_missing(error: ImportError, packages: str, extra: str) -> NoReturn:
    """Raise a `UserError` that says how to install these packages.

    Where another one is missing, the error is raised again.
    """
    if (error.name or "").partition(".")[0] not in packages.split():
        raise error
    fault = "is missing" if isinstance(error, ModuleNotFoundError) else f"does not load ({error})"
    raise UserError(
        f"{error.name} {fault}, which this command needs: pip install {packages}, or "
        f"install this package with its extra [{extra}]"
    ) from error


# System errors about a path that a user can change.
OF_A_PATH = PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError


def explain_path(error: OSError) -> None:
    """Raise a `UserError` for a system error about a path that a user can change."""
    if error.errno == errno.ENAMETOOLONG:
        name = f"{str(error.filename)[:60]}..."
        raise UserError(f"{name} looks like text: give the name of a file or folder") from error
    if isinstance(error, OF_A_PATH) and error.errno is not None and error.filename is not None:
        raise UserError(f"cannot use {error.filename}: {error.strerror}") from error


def in_a_line(error: Exception) -> str:
    """What an error says, without line breaks."""
    return " ".join(str(error).split())
