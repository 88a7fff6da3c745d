"""The model `macaron_transformer_lm`: fairseq's causal language model with layers of a scheme.

And its baselines, which are fairseq's `transformer_lm`. The task is fairseq's `language_modeling`.
"""

from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from typing import Any

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from fairseq.tasks import FairseqTask
from omegaconf import OmegaConf, open_dict
from torch import Tensor, nn

from macaron_fairseq.common.errors import UserError
from macaron_fairseq.compat.adaptive_softmax import keep_weights_apart
from macaron_fairseq.compat.arguments import of_task
from macaron_fairseq.model import arguments, checkpoint_sizes, initialization
from macaron_fairseq.model.base import (
    MacaronModel,
    UnpublishedModel,
    as_namespace,
    refuse_longer_samples,
    refuse_other_task,
)
from macaron_fairseq.model.transformer import MacaronTransformerDecoder

DEFAULT_POSITIONS = 1024  # fairseq's


class MacaronLanguageModel(MacaronModel, TransformerLanguageModel):
    """Macaron Net as a causal language model, with the arguments of fairseq's `transformer_lm`.

    But for `--scale-*`, fairseq's further norms and factors, which a scheme's layers have not.
    A layer has no cross-attention: of a decoder's scheme its steps are left out. Trained models
    load as fairseq users know it, with `score` and `sample`:

        model = MacaronLanguageModel.from_pretrained(
            "checkpoints", "checkpoint_best.pt", "data-bin", bpe="subword_nmt", bpe_codes="code",
        )
        model.score("A sentence.")["positional_scores"]
        model.sample("A sentence", beam=1, sampling=True)
    """

    sides = ("decoder",)
    tasks = ("language_modeling",)
    decoder_class = MacaronTransformerDecoder

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's arguments and the scheme's."""
        add_fairseqs_arguments(parser)
        arguments.add(parser, cls.sides)

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> "MacaronLanguageModel":
        """Build a model from the command line's or a checkpoint's arguments."""
        complete_positions(args, task)
        args = as_namespace(args)
        cls.complete(args, task)
        arguments.refuse_scales(args)
        refuse_unlike_embeddings(args)
        if args.decoder_layers_to_keep:
            args.decoder_layers = len(args.decoder_layers_to_keep.split(","))
        decoder = cls.decoder_class(
            TransformerConfig.from_namespace(args),
            task.target_dictionary,
            cls.build_embeddings(args, task),
            no_encoder_attn=True,
        )
        model = cls(decoder)
        model.args = args
        initialization.start(model, args)
        return model

    @classmethod
    def build_embeddings(cls, args: Namespace, task: FairseqTask) -> nn.Module:
        """The embeddings of tokens that fairseq's arguments ask for."""
        if not (args.character_embeddings or args.adaptive_input):
            return cls.build_embedding(args, task.source_dictionary, args.decoder_input_dim)
        # fairseq builds the others together with the layers, so it is asked for a model without.
        none = {"decoder_layers": 0, "decoder_layers_to_keep": None}
        without_layers = Namespace(**{**vars(args), **none})
        return TransformerLanguageModel.build_model(without_layers, task).decoder.embed_tokens

    def load_state_dict(self, state_dict: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """Load parameters; refuses those that were trained with another dictionary."""
        types = checkpoint_sizes.rows(self.state_dict(), checkpoint_sizes.CAUSAL_TYPES)
        checkpoint_sizes.refuse_other_sizes("the checkpoint", state_dict, types=types)
        return super().load_state_dict(state_dict, *args, **kwargs)


class BaselineLanguageModel(UnpublishedModel, TransformerLanguageModel):
    """What builds the baselines: the model is fairseq's own, of fairseq's own class."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's arguments and the choice of initialisation."""
        add_fairseqs_arguments(parser)
        initialization.add_argument(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> TransformerLanguageModel:
        """Build fairseq's model from the command line's or a checkpoint's arguments."""
        refuse_other_task(args, task, MacaronLanguageModel.tasks)
        complete_positions(args, task)
        refuse_unlike_embeddings(args)
        arguments.refuse_senseless_values(args, ["decoder"])
        model = TransformerLanguageModel.build_model(args, task)
        keep_weights_apart(model.decoder)
        initialization.start(model, args)
        return model


def add_fairseqs_arguments(parser: ArgumentParser) -> None:
    """Add those of `transformer_lm`, without defaults, which an architecture sets."""
    gen_parser_from_dataclass(parser, TransformerLanguageModelConfig(), delete_default=True)


def refuse_unlike_embeddings(args: Namespace) -> None:
    """Raise a `UserError` where embeddings of input and output do not go together."""
    if not args.adaptive_input:
        arguments.refuse_other_output(args, args.decoder_input_dim)
    if args.adaptive_input and not args.adaptive_input_cutoff:
        raise UserError("--adaptive-input needs --adaptive-input-cutoff, such as 2000,8000")
    if args.tie_adaptive_weights:
        if not args.adaptive_input:
            raise UserError("--tie-adaptive-weights needs --adaptive-input: give it, or drop this")
        if args.decoder_input_dim != args.decoder_output_dim:
            raise UserError(
                f"--tie-adaptive-weights needs one width, but --decoder-input-dim is "
                f"{args.decoder_input_dim} and --decoder-output-dim {args.decoder_output_dim}"
            )
        for name in ("cutoff", "factor"):
            ours, theirs = (getattr(args, f"adaptive_{x}_{name}") for x in ("input", "softmax"))
            if ours != theirs:
                raise UserError(
                    f"--tie-adaptive-weights needs one {name} on both sides, but "
                    f"--adaptive-input-{name} is {ours} and --adaptive-softmax-{name} {theirs}"
                )


def complete_positions(args: Any, task: FairseqTask) -> None:
    """Set how many positions there are, where it is not given: as many as a sample has tokens.

    Of fairseq-hydra-train's arguments, which a checkpoint holds, too, the task's alone say that.
    There it is fairseq's default at least, as in the checkpoints that there are.

    Raises:
        UserError: if samples are longer than that.
    """
    if getattr(args, "max_target_positions", None) is None:
        of_samples = getattr(of_task(task), "tokens_per_sample", None) or DEFAULT_POSITIONS
        found = getattr(args, "tokens_per_sample", None) or max(of_samples, DEFAULT_POSITIONS)
        with open_dict(args) if OmegaConf.is_config(args) else nullcontext():
            args.max_target_positions = found
    refuse_longer_samples(args, task, args.max_target_positions, "--max-target-positions")
