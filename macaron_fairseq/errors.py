"""The one exception for what a user can mend."""


class UserError(SystemExit, ValueError):
    """A mistake in flags, files or data; its text is one sentence that names the fix.

    As a `SystemExit` it ends a command with that sentence and status 1 instead of a traceback, in
    fairseq's commands too, which the plugin does not own; as a `ValueError` a program can catch it.
    """


def missing(error: ImportError, packages: str, extra: str) -> UserError:
    """What to say where an import failed: how to install these packages."""
    return UserError(
        f"{error.name or error} is missing, which this command needs: pip install {packages}, or "
        f"install this package with its extra [{extra}]"
    )
