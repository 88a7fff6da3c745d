"""Arguments of models and tasks: where fairseq holds them, and what it parses wrongly."""

from argparse import Namespace
from typing import Any

# The tasks of the authors' BERT: fairseq's task and criterion today.
TODAYS_TASKS = {
    "bert": ("masked_lm", "masked_lm"),
    "glue_single": ("sentence_prediction", "sentence_prediction"),
    "glue_pair": ("sentence_prediction", "sentence_prediction"),
}


class PassUserDir(Namespace):
    """The class of a Macaron model's arguments in a checkpoint.

    A command that was started without `--user-dir macaron_fairseq` runs nothing of the plugin.
    PyTorch's loader then refuses this class, and its message names it: that is the hint.
    """

    __module__ = "macaron_fairseq"  # as checkpoints name it, wherever the class is defined


class SavedArguments(Namespace):
    """What PyTorch's safe loader makes of a saved `argparse.Namespace`: one in today's words.

    Until 0.8 fairseq said `relu_dropout` for `activation_dropout`. The authors' code forks 0.6.
    There, `--macaron` keeps the plain architecture's name, whose class here has no first FFNs. The
    file holds all other arguments, so the name can be replaced. This can go when nobody loads those
    checkpoints any more.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the saved arguments, rename them, and become an `argparse.Namespace`."""
        self.__dict__.update(state)
        self.__class__ = Namespace  # type: ignore[assignment]
        if "arch" not in state:  # of another program than fairseq
            return
        if state.get("relu_dropout") is not None:
            self.__dict__.setdefault("activation_dropout", state["relu_dropout"])
        task, is_plain = state.get("task"), "macaron" not in state["arch"]
        if task in TODAYS_TASKS and ("max_positions" if task == "bert" else "n_classes") in state:
            in_todays_words(self, task)
            if state.get("macaron") and is_plain:
                self.arch = f"{state['arch']}_macaron"
        elif state.get("macaron") and is_plain:
            self.arch = "macaron_transformer"

    def __reduce__(self) -> tuple[type[Namespace], tuple[()]]:
        """Be saved as an `argparse.Namespace` where nothing was taken: it has no state."""
        return Namespace, ()


def in_todays_words(args: Namespace, task: str) -> None:
    """Name what does in fairseq's words what the authors' BERT was trained with."""
    args.task, args.criterion = TODAYS_TASKS[task]
    args.lr_scheduler = "polynomial_decay"
    if task == "bert":
        args.tokens_per_sample = args.max_positions
    else:
        args.num_classes = args.n_classes
        args.regression_target = args.n_classes == 1


def of_task(task: Any) -> Any:
    """A task's options, for which fairseq has two names; the older kind also has an empty `cfg`."""
    return getattr(task, "cfg", None) or getattr(task, "args", None)


def complete_layers_to_keep(args: Namespace) -> None:
    """Mend `--encoder-layers-to-keep` and `--decoder-layers-to-keep` in place.

    fairseq parses a list, but expects text. If one side's is given, it loses the other's layers.
    This can go when `test_fairseq_takes_no_layers_to_keep` fails.
    """
    kept = [getattr(args, f"{side}_layers_to_keep", None) for side in ("encoder", "decoder")]
    if not any(kept):
        return
    for side, layers in zip(("encoder", "decoder"), kept, strict=True):
        layers = layers or range(getattr(args, f"{side}_layers"))
        text = layers if isinstance(layers, str) else ",".join(map(str, layers))
        setattr(args, f"{side}_layers_to_keep", text)
