"""Arguments of models and tasks: where fairseq holds them, and what it parses wrongly."""

from argparse import Namespace
from typing import Any

# Today's words for those of fairseq until 0.8, and of the authors' BERT.
TODAYS_NAMES = {"relu_dropout": "activation_dropout", "act_fn": "activation_fn"}
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

    The one place for arguments of the authors' code, a fork of fairseq 0.6, and of fairseq until
    0.8. With `--macaron` the authors' code keeps the plain architecture's name, whose class here
    has no first FFNs. The file holds all other arguments, so the name can be replaced. This can go
    when nobody loads those checkpoints any more.

    Macaron models of this package do not come here: their arguments are a `PassUserDir`, or of
    fairseq-hydra-train a dict. No name of theirs has changed.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the saved arguments, rename them, and become an `argparse.Namespace`.

        What is in today's words already, as in a mean of checkpoints, stays.
        """
        found = self.__dict__
        found.update(state)
        self.__class__ = Namespace  # type: ignore[assignment]
        if "arch" not in state:  # of another program than fairseq
            return
        for old, new in TODAYS_NAMES.items():
            if state.get(old) is not None:
                found.setdefault(new, state[old])
        task: Any = state.get("task")
        of_theirs = "max_positions" if task == "bert" else "n_classes"
        is_bert = task in TODAYS_TASKS and of_theirs in state
        if is_bert:
            in_todays_words(self, task)
        if state.get("macaron"):
            if "macaron" not in state["arch"]:
                self.arch = f"{state['arch']}_macaron" if is_bert else "macaron_transformer"
            found.setdefault("macaron_scheme", "strang-marchuk")
            if "decoder_ffn_embed_dim" in state:  # whose first FFN is as wide as the encoder's
                width = state.get("encoder_ffn_embed_dim")
                found.setdefault("decoder_first_ffn_embed_dim", width)

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
