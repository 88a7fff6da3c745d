"""The package in Python: what its commands do, with results as plain objects.

    import macaron_fairseq

    model = macaron_fairseq.load("checkpoint.pt", data="runs/quickstart/data")
    model.translate(["The harbour in Lima is open."], beam=5)

Each function calls what the command of its name calls, and raises a `UserError` with the sentence
that the command prints. What a function needs is imported when it is called: `score`, `report` and
`list_schemes` need neither PyTorch nor fairseq.
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from macaron_fairseq.analysis import JACOBIAN_SENTENCES, SENTENCES
from macaron_fairseq.common import files, names, text_lines
from macaron_fairseq.common.errors import UserError, explain_missing, explain_path
from macaron_fairseq.common.progress import bar
from macaron_fairseq.evaluation.report import TITLE

if TYPE_CHECKING:
    from macaron_fairseq.analysis.description import Description
    from macaron_fairseq.evaluation.scores.metrics import Score
    from macaron_fairseq.schemes.formulas import SchemeFormulas
    from macaron_fairseq.text.data_folder import DataFolder
    from macaron_fairseq.translation.translator import Batching, Engine, Search

Name = str | Path
Lines = Sequence[str] | Path  # sentences, or a file with one on each line
Text = TypeVar("Text", str, list[str])

ONE_EXPORT = "CTranslate2 searches with one model: an ensemble is of checkpoints"


# --- translation ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Translator:
    """Trained models that translate raw text; `load` makes one.

    Threads take turns with it. Each process loads its own.
    """

    engine: "Engine"
    data: "DataFolder"
    _turn: threading.Lock = field(
        default_factory=threading.Lock, init=False, repr=False, compare=False
    )

    @cached_property
    def _encode(self) -> Any:
        return self.data.encoder(self.data.source)

    def translate(
        self,
        text: Text,
        *,
        beam: int = 5,
        lenpen: float = 1.0,
        max_len_a: float = 0.0,
        max_len_b: int = 200,
        max_tokens: int = 4096,
        batch_size: int = 128,
    ) -> Text:
        """Translate sentences, or one.

        They are preprocessed as the training data were. The search is fairseq-generate's; its
        result is joined and detokenised. A warning on stderr tells of what was cut, and a bar how
        far it has come.

        Args:
            text: sentences of raw text, of which an empty one stays empty; or one as a `str`.
            beam: hypotheses kept.
            lenpen: length penalty: above 1 favours longer translations.
            max_len_a: a translation has at most max_len_a * x + max_len_b tokens, x those of its
                batch's longest source.
            max_len_b: see there.
            max_tokens: source tokens of a batch, padding included.
            batch_size: sentences of a batch.

        Returns:
            The translations in the same order; for a `str` a `str`.

        Raises:
            UserError: if a number is out of range, a sentence is no `str`, or the memory does not
                suffice.

        Example:
            >>> model.translate(["A dog runs.", "It rains."], beam=5)
            ['Ein Hund rennt.', 'Es regnet.']
        """
        from macaron_fairseq.translation import translator

        lines = [text] if isinstance(text, str | bytes | Path) else [*text]
        refuse_no_str(lines, "the sentences")
        search = translator.Search(beam, lenpen, max_len_a, max_len_b)
        with self._turn, bar("translating", " lines", total=len(lines), leave=False) as shown:
            self.engine.set_search(search)
            blocks = translator.translate(
                map(whole_characters, lines),
                self.engine,
                self._encode,
                self.data.decode,
                translator.Batching(max_tokens=max_tokens, batch_size=batch_size),
                progress=shown.update,
            )
            found = [line for block in blocks for line in block]
        return found[0] if isinstance(text, str) else found


def whole_characters(text: str) -> str:
    """Text without halves of characters, as a cut JSON string has them: U+FFFD stands for each."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def load(
    path: Name | Sequence[Name], data: Name, *, cpu: bool = False, precision: str | None = None
) -> Translator:
    """Load a trained translation model (`macaron-fairseq translate`).

    Args:
        path: a checkpoint; or several, which are searched as an ensemble; or the folder of an
            export for CTranslate2, which needs neither PyTorch nor fairseq.
        data: the data folder that it was trained with: preprocessing.json, code, data-bin/.
        cpu: use no GPU.
        precision: of a checkpoint "fp16" or "bf16", on a GPU; of an export one of CTranslate2's
            computation types, such as "int8". By default fp32, of an export as it is stored.

    Returns:
        What translates with it.

    Raises:
        UserError: if a file is bad, the model was trained with other data, or the precision needs
            a GPU.

    Example:
        >>> model = macaron_fairseq.load("averaged.pt", data="runs/quickstart/data")
        >>> model.translate("The harbour in Lima is open.")
        'Der Hafen in Lima ist geöffnet.'
    """
    from macaron_fairseq.text import data_folder
    from macaron_fairseq.translation import translator

    paths = [Path(x) for x in ([path] if isinstance(path, Name) else path)]
    if not paths:
        raise UserError("there is no model to load: name a checkpoint")
    try:
        folder = data_folder.read(Path(data))
        folder.encoder(folder.source)  # which refuses bad merges, now rather than at the first text
        for one in paths:
            if os.pathsep in str(one) and one.exists():
                raise UserError(f"{one}: '{os.pathsep}' stands between checkpoints, so rename it")
            for name in str(one).split(os.pathsep):
                if not (Path(name).exists() or files.is_remote(name)):
                    raise UserError(f"{name}: no such checkpoint")
    except OSError as error:
        explain_path(error)
        raise
    models = os.pathsep.join(map(str, paths))
    search = translator.Search()
    return Translator(load_engine(models, folder, search, cpu=cpu, precision=precision), folder)


def load_engine(
    path: str,
    data: "DataFolder",
    search: "Search",
    batching: "Batching | None" = None,
    *,
    cpu: bool = False,
    precision: str | None = None,
) -> "Engine":
    """What searches with a model: of checkpoints fairseq's engine, of an export CTranslate2's.

    Args:
        path: checkpoints with ":" between them, or the folder of an export.
        data: what they were trained with.
        search: how to search.
        batching: how much at once; None for what is usual.
        cpu: see `load`.
        precision: see `load`.

    Raises:
        UserError: as `load`.
    """
    from macaron_fairseq.translation.translator import USUAL

    if is_export(path):
        from macaron_fairseq.translation.ctranslate2_engine import CTranslate2Engine

        device, compute_type = "cpu" if cpu else "auto", precision or "default"
        options = {"device": device, "compute_type": compute_type}
        return CTranslate2Engine(Path(path), data, search, batching or USUAL, **options)
    if any(map(is_export, path.split(os.pathsep))):
        raise UserError(ONE_EXPORT)
    from macaron_fairseq import plugin as plugin  # registers the models with fairseq
    from macaron_fairseq.translation import fairseq_engine

    return fairseq_engine.load(path, data, search, use_gpu=not cpu, precision=precision or "fp32")


def is_export(path: str) -> bool:
    """Whether a model is an export, or should be: all else are files."""
    return bool(path) and files.is_there(path) and Path(path).is_dir()


# --- scores and reports --------------------------------------------------------------------------


def score(
    hypotheses: Lines,
    references: Lines,
    language: str,
    metrics: Sequence[str] = ("bleu", "chrf"),
    *,
    lowercase: bool = False,
) -> "list[Score]":
    """Score translations with sacreBLEU (`macaron-fairseq score --plain`).

    Args:
        hypotheses: detokenised sentences, or a file with one on each line.
        references: the raw text of the test set's target, in the same order, or a file.
        language: of both, such as "de".
        metrics: "bleu", "chrf", "chrf++", "ter" and "compound-split-bleu", which papers report for
            WMT'14. For "tokenised-bleu", of the model's tokens, see
            `macaron_fairseq.evaluation.scores.metrics.tokenised_bleu`.
        lowercase: ignore case.

    Returns:
        For each metric its name, the score from 0 to 100, and sacreBLEU's signature.

    Raises:
        UserError: if a reference is empty, the numbers of sentences differ, or there is no such
            metric.

    Example:
        >>> bleu, chrf = macaron_fairseq.score(["Ein Hund rennt."], ["Ein Hund rennt."], "de")
        >>> print(bleu)
        BLEU 100.00 (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0)
        >>> table = pandas.DataFrame([bleu, chrf])
    """
    from macaron_fairseq.evaluation.scores import scoring

    refuse_str(metrics, "the metrics", "")
    found, name = read_lines(hypotheses, "the hypotheses")
    expected, reference = read_lines(references, "the references")
    scoring.refuse_gaps(expected, reference)
    scoring.same_length(found, name, expected, reference)
    return scoring.of_texts(found, expected, language, metrics, lowercase)


def read_lines(text: Lines, what: str) -> tuple[list[str], str]:
    """The sentences of a text, and what to call it."""
    refuse_str(text, what)
    if isinstance(text, Path):
        return list(text_lines.read_lines(text)), str(text)
    lines = list(text)
    refuse_no_str(lines, what)
    return lines, what


def refuse_no_str(lines: Sequence[Any], what: str) -> None:
    """Raise a `UserError` at the first that is no `str`, as an empty cell of a table is none."""
    for number, line in enumerate(lines, 1):
        if not isinstance(line, str):
            raise UserError(f"{what} are to be str, and line {number} is {repr(line)[:60]}")


def refuse_str(given: Any, what: str, instead: str = "or the pathlib.Path of a file") -> None:
    """Raise a `UserError` for one `str`, whose letters would be taken for what it should hold."""
    if isinstance(given, str):
        raise UserError(f"{what} are one str: give a list of them, {instead}".rstrip(", "))


@dataclass(frozen=True, repr=False)
class Report:
    """A comparison of runs; `report` makes one.

    `print` shows report.md, a notebook shows it as text with tables.
    """

    folder: Path  # with report.md, report.json and pictures
    content: dict[str, Any]  # what report.json says
    text: str  # of report.md

    def rows(self) -> list[dict[str, Any]]:
        """A row for each test set, architecture and metric, as `pandas.DataFrame` takes them.

        The standard deviation is over seeds; None for one seed.
        """
        return [
            {
                "test": test["name"],
                "architecture": of["arch"],
                "metric": metric,
                "mean": scores["mean"],
                "standard deviation": scores["standard_deviation"],
                "seeds": len(of["seeds"]),
            }
            for test in self.content["tests"]
            for of in test["architectures"]
            for metric, scores in of["scores"].items()
        ]

    def __repr__(self) -> str:
        return f"<Report of {len(self.content['runs'])} runs in {self.folder}>"

    def __str__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return str(self)


def report(
    runs: Sequence[Name],
    output: Name = "report",
    *,
    baseline: str | None = None,
    published: Name | None = None,
    title: str = TITLE,
    train_text: Name | None = None,
) -> Report:
    """Compare trained and scored models (`macaron-fairseq report`).

    Args:
        runs: the folders of runs, as the recipes leave them: OUT/ARCH/seedN.
        output: the folder to write the report's files to.
        baseline: the architecture to compare with; by default the first whose name is without
            "macaron".
        published: a JSON file of published scores to set next to those of the runs.
        title: of the report.
        train_text: the target side of the training data in Moses' tokens, for scores by the
            frequency of words; without it there are none.

    Returns:
        The scores, and where the files are.

    Raises:
        UserError: if a run is not complete, the runs cannot be compared, or a file cannot be
            written.

    Example:
        >>> found = macaron_fairseq.report(sorted(Path("runs/quickstart").glob("*/seed*")))
        >>> table = pandas.DataFrame(found.rows())
    """
    from macaron_fairseq.evaluation.report import report as comparison

    folder = Path(output)
    if isinstance(runs, Name):
        raise UserError("the runs are one folder: give a list of them")
    folders = [Path(run) for run in runs]
    text = comparison.write(
        folders,
        folder,
        baseline,
        Path(published) if published else None,
        title,
        train_text=Path(train_text) if train_text else None,
    )
    content = files.read_json(folder / "report.json", {"tests": list}, "write it again")
    return Report(folder, content, text)


# --- models as dynamics --------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Dynamics:
    """What models do to the tokens of sentences; `dynamics` makes it.

    `print` shows the table of whole layers that the command prints.
    """

    content: dict[str, Any]  # what dynamics.json says, and the views of single sentences

    def rows(self) -> list[dict[str, Any]]:
        """A row for each model and each of its states and layers, as `pandas.DataFrame` takes them.

        Figures are means over the sentences; glossary and page say what they are. A state's row has
        those of the sub-layer that led to it, too. `step` is how far a layer goes, and `step_size`
        the scheme's own.
        """
        return [
            {
                "model": model["label"],
                "side": side["side"],
                "kind": kind,
                **{key: row[key] for key in ("name", "layer", "time", "operator", "occurrence")},
                "step_size": row["step"],
                "cosine_across": row.get("cosine_across"),
                "local_error_slope": row.get("local_error_slope"),
                **{measure: figure["mean"] for measure, figure in row["figures"].items()},
            }
            for model in self.content["models"]
            for side in model["sides"]
            for kind in ("states", "layers")
            for row in side[kind]
        ]

    def write(self, output: Name = "dynamics") -> list[Path]:
        """Write dynamics.html, its numbers and its pictures to a folder; return their paths.

        They replace those of an earlier run, whose tokens.html is removed.

        Raises:
            UserError: if one cannot be written; then none is.
        """
        from macaron_fairseq.analysis import output as outputs
        from macaron_fairseq.analysis.dynamics import report as dynamics_report

        return outputs.write(Path(output), dynamics_report.contents(self.content))

    def __repr__(self) -> str:
        labels = [model["label"] for model in self.content["models"]]
        return f"<Dynamics of {', '.join(labels)}>"

    def __str__(self) -> str:
        from macaron_fairseq.analysis.dynamics import report as dynamics_report

        return dynamics_report.table(self.content["models"])

    def _repr_markdown_(self) -> str:
        return str(self)


def dynamics(
    paths: Name | Sequence[Name],
    data: Name,
    text: Lines | None = None,
    *,
    target: Lines | None = None,
    labels: Sequence[str] | None = None,
    subset: str = "test",
    sentences: int = SENTENCES,
    longest: int | None = None,
    jacobian_sentences: int = JACOBIAN_SENTENCES,
    threshold: float = 0.9,
    beta: float = 1.0,
    seed: int = 1,
    source_lang: str | None = None,
    target_lang: str | None = None,
    cpu: bool = False,
) -> Dynamics:
    """Measure what trained models do to the tokens of sentences (`macaron-fairseq dynamics`).

    Args:
        paths: checkpoints, the baseline first.
        data: the data folder that they were trained with.
        text: sentences of raw text, or a file; by default those of a data set.
        target: their translations; by default what the model itself translates them to.
        labels: a name for each checkpoint.
        subset: of the data, where there is no text.
        sentences: at most the first so many.
        longest: the most tokens of one, its ends included; longer ones are left out.
        jacobian_sentences: of them, evenly spread, at one token of which Jacobians are taken.
        threshold: the cosine above which two tokens belong to one cluster.
        beta: of the energy.
        seed: of what is drawn.
        source_lang: where the data folder does not tell it.
        target_lang: the same.
        cpu: use no GPU.

    Returns:
        The figures of each state and each layer.

    Raises:
        UserError: if a checkpoint is bad or not supported, the models do not go together, or
            something is wrong with the data or the text.

    Example:
        >>> found = macaron_fairseq.dynamics(["base.pt", "macaron.pt"], "runs/quickstart/data")
        >>> table = pandas.DataFrame(found.rows())
        >>> written = found.write("dynamics")
    """
    import torch

    from macaron_fairseq import plugin  # noqa: F401 - registers the models with fairseq

    try:
        import matplotlib  # noqa: F401 - which what is shown needs

        from macaron_fairseq.analysis import models
        from macaron_fairseq.analysis import sentences as read
        from macaron_fairseq.analysis.dynamics import measurement
    except ImportError as error:
        explain_missing(error, "scipy matplotlib threadpoolctl", "dynamics")
    checkpoints = [Path(x) for x in ([paths] if isinstance(paths, Name) else paths)]
    if not checkpoints:
        raise UserError("there is no model to measure: name a checkpoint")
    refuse_str(labels, "the labels", "")
    names.refuse_labels(labels, checkpoints)
    for name, value in (("sentences", sentences), ("longest", longest)):
        if value is not None and value < 1:
            raise UserError(f"{name} {value} should be above 0")
    if target is not None and text is None:
        raise UserError("target is the translation of text: give text, too, or drop it")
    refuse_str(text, "the sentences")
    refuse_str(target, "their translations")
    settings = measurement.Settings(
        threshold=threshold, beta=beta, jacobian_sentences=jacobian_sentences, seed=seed
    )
    device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
    loaded, opened = models.load(checkpoints, Path(data), source_lang, target_lang, labels, device)
    sample = read.read(opened, text, target, subset, sentences, longest)
    found = measurement.compare(loaded, sample, settings)
    return Dynamics({**found, "command": "macaron_fairseq.dynamics(...) in Python"})


def describe(
    model: Name,
    *,
    scheme: str | None = None,
    substep: str | None = None,
    types: int | None = None,
    tokens: int = 30,
    **flags: Any,
) -> "Description":
    """A model's layers as formulas, with parameters and operations (`macaron-fairseq describe`).

    Args:
        model: an architecture, such as "macaron_transformer", or the file of a checkpoint, which
            says all else itself.
        scheme: of an architecture: the splitting scheme, see `list_schemes`.
        substep: of an architecture: euler, midpoint, rk4 or gated-rk2.
        types: of an architecture: the size of both dictionaries; None for 10,000.
        tokens: the length of sentences at which operations are counted.
        flags: of an architecture: any other flag of the model, with "_" for "-"; True for a
            switch.

    Returns:
        The formulas and the sizes, next to those of the Transformer with FFNs of the same width.

    Raises:
        UserError: if there is no such architecture, flag, scheme or sub-step, or the checkpoint is
            bad or not supported.

    Example:
        >>> found = macaron_fairseq.describe("macaron_transformer", scheme="strang-marchuk")
        >>> found.layers[0].formulas
        ('x <- x + 1/2 FFN1(LN x)', 'x <- x + Self(LN x)', 'x <- x + 1/2 FFN2(LN x)')
        >>> deep = macaron_fairseq.describe("macaron_transformer", encoder_layers=12)
        >>> [layers.count for layers in deep.layers]
        [12, 6]
    """
    from macaron_fairseq import plugin  # noqa: F401 - registers the models with fairseq
    from macaron_fairseq.analysis import description, empty_models

    if tokens < 1 or (types is not None and types < 1):
        raise UserError(f"tokens {tokens} and types {types} should be above 0")
    for name, value in {"scheme": scheme, "substep": substep}.items():
        if value is not None and flags.setdefault(f"macaron_{name}", value) != value:
            raise UserError(f"{name} and macaron_{name} are one flag: give one of them")
    given = {name: value for name, value in flags.items() if value is not None}
    if isinstance(model, Path) or model.endswith(".pt") or Path(model).is_file():
        if given or types:
            raise UserError(
                "a checkpoint says itself what it is: give no flags of the model, and no types"
            )
        return description.describe(*empty_models.of_checkpoint(Path(model)), tokens)
    own = empty_models.flags_of(model, given)
    found = empty_models.of_architecture(model, own, types or empty_models.TYPES)
    return description.describe(*found, tokens)


def list_schemes(substep: str = "euler") -> "list[SchemeFormulas]":
    """The splitting schemes, a formula for each step of a layer.

    Args:
        substep: how steps are taken: euler, midpoint, rk4 or gated-rk2.

    Returns:
        One object for each scheme, as `pandas.DataFrame` takes them.

    Raises:
        UserError: if there is no such sub-step.

    Example:
        >>> [scheme.name for scheme in macaron_fairseq.list_schemes()][:3]
        ['lie-trotter', 'lie-trotter-reversed', 'strang-marchuk']
    """
    from macaron_fairseq.schemes import formulas

    return formulas.of_schemes(substep)
