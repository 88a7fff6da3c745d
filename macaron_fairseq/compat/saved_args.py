"""What a checkpoint of a Macaron model holds of the command line."""

from argparse import Namespace


class PassUserDir(Namespace):
    """The class of a Macaron model's arguments in a checkpoint.

    Its name is what PyTorch's loader complains of, when a command was started without
    `--user-dir macaron_fairseq`: nothing of the plugin runs then that could say so.
    """

    __module__ = "macaron_fairseq"  # the name in the file, wherever the class is defined
