"""The count of `--patience`, which fairseq does not save: a resumed run would begin it anew.

fairseq keeps the best validation loss and the count as attributes of a function of its command. Its
`save_checkpoint` asks a task what else to save, and none of fairseq's answers. Here each does.
This can go when `test_fairseq_forgets_the_count_of_patience` fails.
"""

import sys
from typing import Any

from fairseq import checkpoint_utils
from fairseq.tasks import FairseqTask, LegacyFairseqTask

# The second where it runs as `python -m fairseq_cli.train`.
COMMANDS = ("fairseq_cli.train", "__main__")


def counts() -> list[dict[str, Any]]:
    """What fairseq-train remembers for `--patience`, to be changed in place."""
    found = (getattr(sys.modules.get(name), "should_stop_early", None) for name in COMMANDS)
    return [vars(function) for function in found if function is not None]


def get_checkpoint_dict(task: FairseqTask) -> dict[str, dict[str, Any]]:
    """What a task adds to a checkpoint, under the names where `set_checkpoint_dict` gets it.

    That is the name of its class. A run may go on with a task of a subclass or of the parent class,
    as `macaron_translation` is one of `translation`.
    """
    known = next(filter(None, counts()), None)
    if not known:
        return {}
    own = type(task)
    bases = FairseqTask, LegacyFairseqTask, object
    parents = [x for x in own.__mro__[1:] if x not in bases]
    children = [x for x in own.__subclasses__() if not x.__module__.startswith("fairseq.")]
    return {x.__name__: dict(known) for x in (own, *parents, *children)}


def set_checkpoint_dict(task: FairseqTask, saved: dict[str, Any]) -> None:
    """Go on with the count, unless the flags let fairseq forget which checkpoint was the best."""
    if hasattr(checkpoint_utils.save_checkpoint, "best"):
        for count in counts():
            count.update(saved)


def remember() -> None:
    """Let the checkpoints of every task that has nothing else to add hold the count."""
    if not hasattr(FairseqTask, "get_checkpoint_dict"):  # another copy of the plugin's, too
        FairseqTask.get_checkpoint_dict = get_checkpoint_dict
        FairseqTask.set_checkpoint_dict = set_checkpoint_dict
