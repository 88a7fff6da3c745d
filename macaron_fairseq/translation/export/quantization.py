"""The weights of an export in fewer bits."""

from typing import Any

import numpy as np

# On a CPU without VNNI two products of int8 weights and activations of up to 255 are added in 16
# bits, which saturate at 32767: 2 * 255 * 64 = 32640.
LARGEST = 64


def quantize(spec: Any, quantization: str, reduce_range: bool) -> None:
    """Quantise the weights of one of CTranslate2's specifications, in place.

    Args:
        spec: the model.
        quantization: one of `QUANTIZATIONS`.
        reduce_range: whether int8 is to be from -64 to 64 and not from -127 to 127, a step of twice
            the size.
    """
    spec.optimize(quantization)
    if reduce_range:
        halve(spec)


def halve(spec: Any) -> None:
    """Round weights w = q / scale, whose largest |q| in each row is 127, to one of 64."""
    from ctranslate2.specs.model_spec import NumpyVariable, visit_spec

    ratio = np.float32(LARGEST / 127)

    def round_again(layer: Any, name: str, value: Any) -> None:
        name = name.rpartition("/")[2]
        if not isinstance(value, NumpyVariable) or value.dtype != "int8":
            return
        scale = getattr(layer, f"{name}_scale", None)
        if isinstance(scale, NumpyVariable):
            value.array = np.rint(value.array * ratio).astype(np.int8)
            scale.array = scale.array * ratio

    visit_spec(spec, round_again)
