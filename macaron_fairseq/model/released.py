"""Parameters of the authors' released code, a fork of fairseq 0.6.

Their architectures are registered in `architectures`; here their parameter names become this
package's, as their arguments do in `compat.arguments`. Facts of that format: the FFN halves of a
layer are `macaron_fc1`, `macaron_fc2` (first) and `fc1`, `fc2`. The first half's LayerNorm is
`layer_norms.2` in the encoder and `macaron_layer_norm` in the decoder.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

FFNS_RENAMED = {
    r"(.*\.layers\.\d+)\.macaron_(fc[12]\..*)": r"\1.earlier.0.network.\2",
    r"(decoder\.layers\.\d+)\.macaron_layer_norm\.(.*)": r"\1.earlier.0.layer_norm.\2",
    r"(encoder\.layers\.\d+)\.layer_norms\.2\.(.*)": r"\1.earlier.0.layer_norm.\2",
}


def upgrade_state(state_dict: dict[str, Tensor]) -> None:
    """Rename a released checkpoint's parameters in place; leave others as they are."""
    if not any(".macaron_fc1." in name for name in state_dict):
        return
    for old in list(state_dict):
        if (new := renamed(old, FFNS_RENAMED)) != old:
            state_dict[new] = state_dict.pop(old)
    for side in ("encoder", "decoder"):
        keep_final_layer_norm(state_dict, side)


def renamed(name: str, patterns: Mapping[str, str]) -> str:
    """The name by the first pattern that matches all of it; unchanged if none does."""
    for pattern, replacement in patterns.items():
        if match := re.fullmatch(pattern, name):
            return match.expand(replacement)
    return name


def keep_final_layer_norm(state_dict: dict[str, Tensor], side: str) -> None:
    """Say by its version that a released model's encoder or decoder ends in a LayerNorm.

    Their 2 means that there, and none in today's fairseq, whose own value is 3.
    """
    state_dict[f"{side}.version"] = torch.tensor([3.0])
