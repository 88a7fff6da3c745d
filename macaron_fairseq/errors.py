"""The one exception for what a user can mend."""


class UserError(SystemExit, ValueError):
    """A mistake in flags, files or data; its text is one sentence that names the fix.

    As a `SystemExit` it ends a command with that sentence and status 1 instead of a traceback, in
    fairseq's commands too, which the plugin does not own; as a `ValueError` a program can catch it.
    """


def missing(error: ImportError, packages: str, extra: str) -> UserError:
    """What to say where the import of a package failed: how to install them; else the error."""
    if (error.name or "").partition(".")[0] not in packages.split():
        raise error
    return UserError(
        f"{error.name} is missing, which this command needs: pip install {packages}, or "
        f"install this package with its extra [{extra}]"
    )
