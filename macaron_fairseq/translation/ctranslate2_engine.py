"""CTranslate2 as an engine: the folders that `macaron-fairseq export` writes, without fairseq."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from pathlib import Path
from typing import Any

from macaron_fairseq.common import environment, files
from macaron_fairseq.common.errors import UserError, explain_missing
from macaron_fairseq.text.data_folder import CODES, DataFolder, Tokens
from macaron_fairseq.translation.translator import USUAL, Batching, Search, warn

# In the folder, next to CTranslate2's files: what it was made from.
EXPORT_JSON = "export.json"
FIELDS = {"max_source_positions": int, "max_target_positions": int, "dictionaries": dict}

SPECIAL = ("<s>", "<pad>", "</s>")  # fairseq's, of which none is a word
# What weights can be quantised to, in CTranslate2's words.
QUANTIZATIONS = (
    "float32",
    "float16",
    "bfloat16",
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
)
# What it computes in. The default is the model's type, or the nearest that the device has.
COMPUTE_TYPES = ("default", "auto", *QUANTIZATIONS)


class CTranslate2Engine:
    """CTranslate2's beam search with an exported model.

    It finds what fairseq's finds, with two exceptions. Where a hypothesis reaches the maximum
    length, fairseq ends it and counts the cost of the end; CTranslate2 cuts it off. Some tokens
    must not come next: padding, or the end at the first step. CTranslate2 rules them out before it
    normalises, fairseq after. Log-probabilities differ by their share, some 1e-5 a token with label
    smoothing and a vocabulary of 10k.
    """

    def __init__(
        self,
        folder: Path,
        data: DataFolder,
        search: Search,
        batching: Batching = USUAL,
        *,
        device: str = "cpu",
        compute_type: str = "default",
    ) -> None:
        """Load the model.

        Args:
            folder: what `macaron-fairseq export` wrote.
            data: what the model was trained with.
            search: how to search.
            batching: how much at once, which tells how many batches can run side by side.
            device: "cpu", "cuda", or "auto": the GPU where there is one.
            compute_type: one of `COMPUTE_TYPES`.

        Raises:
            UserError: if CTranslate2 is not installed, the folder is not what it should be or is of
                other data, or the device lacks the computation type.
        """
        library = import_ctranslate2()
        require_export(folder)
        content = files.read_json(
            folder / EXPORT_JSON, FIELDS, "give a folder that macaron-fairseq export wrote"
        )
        refuse_other_data(folder, content, data)
        self.max_length = content["max_source_positions"] - 1  # one for the end of the sentence
        self.positions = content["max_target_positions"] - 1
        self.set_search(search)
        # A batch on each core is faster than all cores on a batch, in int8 several times.
        threads, self.parallel = 1, 1
        if device == "cpu" or not library.get_cuda_device_count():
            threads = environment.wanted_threads()
            self.parallel = min(threads, ceil(batching.lines / batching.batch_size))
        try:
            self.translator = library.Translator(
                str(folder),
                device=device,
                compute_type=compute_type,
                inter_threads=self.parallel,
                intra_threads=threads // self.parallel,
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(f"CTranslate2 cannot load {folder}: {error}") from error
        if (
            self.translator.device == "cpu"
            and self.translator.compute_type.startswith("int8")
            and not content.get("reduce_range")
            and environment.cpu_lacks_vnni()
        ):
            warn(
                "this CPU has no VNNI, and sums of int8 products may overflow, which changes more "
                "translations than int8 need: export with --reduce-range for it"
            )

    def set_search(self, search: Search) -> None:
        """Search so from now on."""
        self.limits = search
        self.options = {
            "beam_size": search.beam,
            # At 0 itself CTranslate2 would stop by another rule than fairseq.
            "length_penalty": search.lenpen or 1e-30,
            "min_decoding_length": 1,
            "max_input_length": 0,  # no limit: `max_length` is the model's
            "return_end_token": True,  # with which it surely counts in the length, as in fairseq
            "suppress_sequences": [["<pad>"]],
        }

    def longest(self, batch: Sequence[Tokens]) -> int:
        """How many tokens a translation in that batch can have."""
        return min(self.limits.longest(batch), self.positions)

    def translate(self, batches: Sequence[Sequence[Tokens]]) -> Iterator[list[Tokens]]:
        """The best hypothesis of each sentence, batch by batch, each called for by a thread.

        Raises:
            UserError: if CTranslate2 fails, as where the GPU's memory does not suffice.
        """
        with ThreadPoolExecutor(self.parallel) as pool:
            yield from pool.map(self.search, batches)

    def search(self, batch: Sequence[Tokens]) -> list[Tokens]:
        """The best hypothesis of each sentence of a batch."""
        try:
            results = self.translator.translate_batch(
                batch, max_decoding_length=self.longest(batch), **self.options
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(f"CTranslate2 cannot translate: {error}") from error
        best = (result.hypotheses[0] for result in results)
        return [[token for token in tokens if token not in SPECIAL] for tokens in best]


def require_export(folder: Path) -> None:
    """Raise a `UserError` if what is to be an export's folder is something else."""
    if folder.is_file():
        raise UserError(f"{folder} is not an export: make one of it with macaron-fairseq export")
    if folder.is_dir() and not (folder / EXPORT_JSON).is_file():
        raise UserError(
            f"{folder} is a folder and no export: name a checkpoint in it, such as "
            "checkpoint_best.pt"
        )


def refuse_other_data(folder: Path, content: dict[str, Any], data: DataFolder) -> None:
    """Raise a `UserError` if an export's model was trained with other data."""
    for side, language in (("source", data.source), ("target", data.target)):
        path = data.dictionary(language)
        if content["dictionaries"].get(side) != files.sha256(path):
            raise UserError(
                f"{folder} was exported with another {side} dictionary than {path}: use the "
                "data folder that the model was trained with"
            )
    # Neither is in exports of earlier versions.
    data.refuse_other_direction(folder, content.get("direction") or ())
    if "code" in content:
        data.refuse_changed({CODES: content["code"]}, f"{folder / EXPORT_JSON} says")


def import_ctranslate2() -> Any:
    """The library, which is not among what this package needs.

    Raises:
        UserError: if it is not installed.
    """
    try:
        import ctranslate2
    except ImportError as error:
        explain_missing(error, "ctranslate2", "ctranslate2")
    return ctranslate2
