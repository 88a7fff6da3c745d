"""Writing a trained model as a folder of CTranslate2, and making sure that it is the same."""

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.model.loading import load_models
from macaron_fairseq.text import data_folder
from macaron_fairseq.text.data_folder import CODES
from macaron_fairseq.translation.ctranslate2_engine import EXPORT_JSON, import_ctranslate2
from macaron_fairseq.translation.ctranslate2_specification import specification
from macaron_fairseq.translation.fairseq_engine import load_dictionaries
from macaron_fairseq.translation.translator import refuse_missing
from macaron_fairseq.version import __version__

# All that there can be in the folder of an export.
VOCABULARIES = {f"{of}_vocabulary.json" for of in ("shared", "source", "target")}
NAMES = {EXPORT_JSON, "model.bin", "config.json", *VOCABULARIES}

# On a CPU without VNNI two products of int8 weights and activations of up to 255 are added in 16
# bits, which saturate at 32767: 2 * 255 * 64 = 32640.
LARGEST = 64

# Of token log-probabilities in float32. They differ by rounding, some 1e-6, in large models more.
TOLERANCE = 1e-4


def export(
    path: str,
    data: Path,
    folder: Path,
    kind: str,
    *,
    reduce_range: bool = False,
    replace: bool = False,
) -> float:
    """Write a checkpoint as a folder of CTranslate2.

    Args:
        path: the checkpoint.
        data: the data folder that it was trained with.
        folder: the new folder.
        kind: one of `QUANTIZATIONS`.
        reduce_range: whether int8 is to have 7 bits, which no CPU adds up to more than it can hold.
        replace: whether an export that has the name already may be replaced.

    Returns:
        How far token log-probabilities of some sentences differ from fairseq's.

    Raises:
        UserError: if something of that is bad, or CTranslate2 is not installed or cannot express
            the model.
    """
    library = import_ctranslate2()
    if reduce_range and not kind.startswith("int8"):
        raise UserError(f"--reduce-range is for --quantization int8, and this is {kind}: drop it")
    files.refuse_place(folder)
    refuse_existing(folder, replace)
    refuse_missing(path, "checkpoint")
    if os.pathsep in path:
        raise UserError(f"{path} is an ensemble, and CTranslate2 runs one model: average them")
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # or it reports all that it loads
    made = data_folder.read(data)
    source, target = load_dictionaries(made, [path])
    (model,) = load_models(path, TranslationTask(TranslationConfig(), source, target))
    spec = specification(model, source, target)
    quantize(spec, kind, reduce_range)
    longest_source, longest_target = model.max_positions()
    about = {
        "format": "ctranslate2",
        "quantization": kind,
        "reduce_range": reduce_range,
        "checkpoint": {"name": Path(path).name, "sha256": files.sha256(Path(path))},
        "direction": [made.source, made.target],
        "dictionaries": {
            "source": files.sha256(made.dictionary(made.source)),
            "target": files.sha256(made.dictionary(made.target)),
        },
        **({"code": files.sha256(data / CODES)} if (data / CODES).is_file() else {}),
        "max_source_positions": longest_source,
        "max_target_positions": longest_target,
        "macaron_fairseq": __version__,
        "ctranslate2": library.__version__,
    }
    with files.written_folder(folder, NAMES) as partial:
        spec.save(str(partial))
        files.write(partial / EXPORT_JSON, files.as_json(about))
        difference = largest_difference(model, partial, source, target)
        if kind == "float32" and not difference < TOLERANCE:
            raise UserError(
                f"{folder} is not written: its token log-probabilities would differ from the "
                f"checkpoint's by up to {difference:.2g}, which is a fault of this package or of "
                f"CTranslate2 {library.__version__}: please report it"
            )
    return difference


def refuse_existing(folder: Path, replace: bool) -> None:
    """Raise a `UserError` if something of that name must stay: an export, unless `replace`."""
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if is_empty or not folder.exists():
        return
    if not (files.holds_only(folder, NAMES) and (folder / EXPORT_JSON).is_file()):
        raise UserError(f"{folder} is there already and is not an export: choose another name")
    if not replace:
        raise UserError(f"{folder} is there already: choose another name, or replace it: --force")


@torch.no_grad()
def largest_difference(model: Any, folder: Path, source: Dictionary, target: Dictionary) -> float:
    """How far token log-probabilities of an export and its model differ, on made-up sentences.

    They are random words, in lengths up to 30; the export takes them as one batch, with padding.
    Natural logarithms.
    """
    model.eval()
    generator = torch.Generator().manual_seed(1)
    limit = min(model.max_positions()) - 1
    lengths = [min(length, limit) for length in (3, 8, 17, 30)]

    def sentences(dictionary: Dictionary) -> list[torch.Tensor]:
        words = dictionary.nspecial, len(dictionary)
        return [torch.randint(*words, (length,), generator=generator) for length in lengths]

    inputs, outputs = sentences(source), sentences(target)
    translator = import_ctranslate2().Translator(str(folder), device="cpu")
    results = translator.score_batch(
        [[source[i] for i in x] for x in inputs],
        [[target[i] for i in x] for x in outputs],
        max_input_length=0,
    )
    largest = 0.0
    end = torch.tensor([target.eos()])
    for x, y, result in zip(inputs, outputs, results, strict=True):
        x, previous, following = torch.cat((x, end)), torch.cat((end, y)), torch.cat((y, end))
        output = model(x[None], torch.tensor([len(x)]), previous[None])
        log_probs = model.get_normalized_probs(output, log_probs=True)[0]
        expected = log_probs.gather(1, following[:, None])[:, 0]
        difference = (expected - torch.tensor(result.log_probs)).abs().max()
        largest = max(largest, float(difference.nan_to_num(torch.inf)))
    return largest


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
