"""The one exception for what a user can mend."""


class UserError(SystemExit, ValueError):
    """A mistake in flags, files or data; its text is one sentence that names the fix.

    As a `SystemExit` it ends a command with that sentence and status 1 instead of a traceback, in
    fairseq's commands too, which the plugin does not own; as a `ValueError` a program can catch it.
    """
