"""A model's arguments in a checkpoint: under which class they are saved, and how old ones read."""

from argparse import Namespace
from typing import Any


class PassUserDir(Namespace):
    """The class of a Macaron model's arguments in a checkpoint.

    Its name is what PyTorch's loader complains of, when a command was started without
    `--user-dir macaron_fairseq`: nothing of the plugin runs then that could say so.
    """

    __module__ = "macaron_fairseq"  # the name in the file, wherever the class is defined


class SavedArguments(Namespace):
    """What PyTorch's safe loader makes of an `argparse.Namespace`: one in today's words.

    fairseq until 0.8 called `activation_dropout` `relu_dropout`. The authors' code, a fork of 0.6,
    saves a model trained with its flag `--macaron` under the name of the plain architecture, whose
    class has no place for the first FFNs. Every other argument is in the file, so that the
    architecture's name no longer matters. Can go when nobody loads those checkpoints any more.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the saved arguments, rename them, and be an `argparse.Namespace` from then on."""
        self.__dict__.update(state)
        if state.get("relu_dropout") is not None:
            self.__dict__.setdefault("activation_dropout", state["relu_dropout"])
        if state.get("macaron") and "macaron" not in state.get("arch", ""):
            self.arch = "macaron_transformer"
        self.__class__ = Namespace  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[Namespace], tuple[()]]:
        """Be saved as an `argparse.Namespace` where there was nothing to take: it has no state."""
        return Namespace, ()
