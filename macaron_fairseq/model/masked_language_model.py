"""The model `macaron_roberta`: fairseq's RoBERTa with layers that integrate a scheme.

And its baselines, which are fairseq's RoBERTa. Tasks, criteria and heads are fairseq's: `masked_lm`
for pre-training and `sentence_prediction` for fine-tuning.
"""

from argparse import ArgumentParser, Namespace
from collections import Counter
from contextlib import nullcontext
from typing import Any, ClassVar

from fairseq.data import Dictionary
from fairseq.models.roberta import RobertaEncoder, RobertaModel
from fairseq.models.roberta.model import base_architecture
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from fairseq.tasks import FairseqTask
from omegaconf import OmegaConf, open_dict
from torch import Tensor, nn

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.names import flag
from macaron_fairseq.model import arguments, checkpoint_sizes, initialization
from macaron_fairseq.model.base import (
    MacaronModel,
    UnpublishedModel,
    as_namespace,
    refuse_longer_samples,
    refuse_other_task,
)
from macaron_fairseq.model.transformer import MacaronTransformerEncoder
from macaron_fairseq.schemes import splitting
from macaron_fairseq.schemes.splitting import FFN, SELF_ATTENTION

DEFAULT_POSITIONS = 512  # fairseq's
# Flags that prune, what turns them off, and the networks of which fairseq sees one in each layer.
PRUNING = (
    ("ffn_blocks_to_remove", -1, FFN, "FFN"),
    ("ffn_reg_scale_factor", 0, FFN, "FFN"),
    ("mha_heads_to_keep", -1, SELF_ATTENTION, "self-attention"),
    ("mha_reg_scale_factor", 0, SELF_ATTENTION, "self-attention"),
)


class MacaronRobertaEncoder(RobertaEncoder):
    """fairseq's encoder with a head for masked tokens, around layers that integrate a scheme."""

    encoder_class = MacaronTransformerEncoder

    def build_encoder(
        self, args: Namespace, dictionary: Dictionary, embed_tokens: nn.Module
    ) -> MacaronTransformerEncoder:
        """Build embeddings and layers, initialised as BERT's."""
        encoder = self.encoder_class(
            TransformerConfig.from_namespace(args), dictionary, embed_tokens
        )
        encoder.apply(init_bert_params)
        return encoder


class MacaronRobertaModel(MacaronModel, RobertaModel):
    """Macaron Net as a masked language model (Lu et al. 2019, section 5.2).

    All arguments of fairseq's RoBERTa hold, and its classification heads. Its pruning of FFNs
    (`--ffn-*`) is for layers with one.
    """

    sides = ("encoder",)
    tasks = "masked_lm", "sentence_prediction"
    # Text is split as the checkpoint says; fairseq's RoBERTa takes GPT-2's BPE.
    loading: ClassVar = {"bpe": None}
    encoder_class = MacaronRobertaEncoder

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's arguments and the scheme's."""
        RobertaModel.add_args(parser)
        arguments.add(parser, cls.sides)

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> "MacaronRobertaModel":
        """Build a model from the command line's or a checkpoint's arguments."""
        args = as_namespace(args)
        cls.complete(args, task)
        complete_positions(args, task)
        base_architecture(args)
        refuse_pruning(args)
        model = cls(args, cls.encoder_class(args, task.source_dictionary))
        initialization.start(model, args)
        return model

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Rename what old fairseq named otherwise; refuses parameters of other data."""
        refuse_other_sizes(self, state_dict)
        super().upgrade_state_dict_named(state_dict, name)


class BaselineRobertaModel(UnpublishedModel, RobertaModel):
    """What builds the baselines: the model is fairseq's own, of fairseq's own class."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's arguments and the choice of initialisation."""
        RobertaModel.add_args(parser)
        initialization.add_argument(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> RobertaModel:
        """Build fairseq's RoBERTa from the command line's or a checkpoint's arguments."""
        refuse_other_task(args, task, MacaronRobertaModel.tasks)
        complete_positions(args, task)
        arguments.refuse_senseless_values(args, ["encoder"])
        model = RobertaModel.build_model(args, task)
        initialization.start(model, args)
        return model


def refuse_pruning(args: Namespace) -> None:
    """Raise a `UserError` where fairseq would prune one of several networks (AdaPruning)."""
    held = {*splitting.operators(arguments.steps_of(args, "encoder"))}
    counts = Counter(operator.kind for operator in held)
    for name, off, kind, word in PRUNING:
        if counts[kind] > 1 and getattr(args, name, off) != off:
            raise UserError(
                f"{flag(name)} is for layers with one {word}: leave it out, or take a scheme with "
                "one, such as --macaron-scheme lie-trotter"
            )


def complete_positions(args: Any, task: FairseqTask) -> None:
    """Set how many positions there are, where it is not given: as many as the task's texts have.

    Raises:
        UserError: if texts are longer than that, or no token stands for what is masked.
    """
    if task.source_dictionary.index("<mask>") == task.source_dictionary.unk():
        raise UserError(
            "the dictionary has no <mask>, which a masked language model reads in place of a "
            "masked token: use fairseq's task masked_lm or sentence_prediction, which add it"
        )
    if getattr(args, "max_positions", None) is None:
        tokens = getattr(args, "tokens_per_sample", None)
        with open_dict(args) if OmegaConf.is_config(args) else nullcontext():
            args.max_positions = tokens or task.max_positions() or DEFAULT_POSITIONS
    refuse_longer_samples(args, task, args.max_positions, "--max-positions")


def refuse_other_sizes(model: RobertaModel, state_dict: dict[str, Tensor]) -> None:
    """Raise a `UserError` if a checkpoint has another dictionary, other positions or classes.

    fairseq answers the first two with a traceback, and drops a head of other classes.
    """
    own, heads = model.state_dict(), model.classification_heads
    checkpoint_sizes.refuse_other_sizes(
        "the checkpoint",
        state_dict,
        types=checkpoint_sizes.rows(own, checkpoint_sizes.MASKED_TYPES),
        positions=checkpoint_sizes.positions_of(own),
        classes={x: checkpoint_sizes.rows(own, checkpoint_sizes.of_head(x)) for x in heads},
    )
