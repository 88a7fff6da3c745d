"""The initialisation of a network (`--macaron-init`): fairseq's, or that of the authors' code.

`released` is that of their code for translation. Both draw embeddings and attention's weights from
the same distributions. They differ in the FFNs and in attention's biases. Fan-in is m, fan-out n:

                               fairseq                 released
    weights of an FFN          U(-1/sqrt m, 1/sqrt m)  U(-b, b), b = sqrt(6 / (m + n)) (Glorot)
    its biases                 U(-1/sqrt m, 1/sqrt m)  0
    biases of q, k and v       U(-1/sqrt m, 1/sqrt m)  0

fairseq's are what `torch.nn.Linear` starts with. fairseq 0.6, which they forked, set its own.

A masked language model starts as fairseq's RoBERTa does: all weights from N(0, 0.02), all biases 0.
There `released` draws the FFNs' weights alone. The authors' own BERT drew them otherwise, from
normal distributions (Kaiming).
"""

from argparse import ArgumentParser, Namespace
from typing import Any

from fairseq.modules import MultiheadAttention
from torch import nn

from macaron_fairseq.common.errors import UserError

FAIRSEQ, RELEASED = CHOICES = "fairseq", "released"


def add_argument(parser: ArgumentParser) -> None:
    """Add the model's argument."""
    parser.add_argument(
        "--macaron-init",
        choices=CHOICES,
        help="how weights start: as in fairseq, or as in the authors' released code for "
        "translation, with Xavier-uniform FFNs, and 0 for the biases of FFNs and attention "
        f"(default: {FAIRSEQ})",
    )


def start(model: nn.Module, args: Namespace) -> None:
    """Give a model that was just built the weights that its arguments ask for.

    `fairseq` leaves it as it is. `released` draws the FFNs anew, so that all other weights are
    those of the same seed with `fairseq`.

    Raises:
        UserError: if fairseq has put the weights of several modules into one tensor.
    """
    if getattr(args, "macaron_init", FAIRSEQ) != RELEASED:
        return
    if getattr(args, "ddp_backend", None) == "fully_sharded":
        raise UserError(
            f"--macaron-init {RELEASED} does not go with --ddp-backend fully_sharded, which has "
            "flattened the weights by then: choose another of the two"
        )
    module: Any
    for module in model.modules():
        if hasattr(module, "fc1"):  # a layer, or an earlier FFN of a scheme
            for linear in (module.fc1, module.fc2):
                nn.init.xavier_uniform_(linear.weight)
                nn.init.zeros_(linear.bias)
        elif isinstance(module, MultiheadAttention):
            for linear in (module.q_proj, module.k_proj, module.v_proj, module.out_proj):
                nn.init.zeros_(linear.bias)
