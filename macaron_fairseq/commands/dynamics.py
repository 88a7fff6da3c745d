"""`macaron-fairseq dynamics`: what trained models do to the tokens of real sentences."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from macaron_fairseq.analysis import JACOBIAN_SENTENCES, SENTENCES
from macaron_fairseq.commands import residual_stream
from macaron_fairseq.commands.arguments import (
    above_zero,
    folder,
    not_negative_integer,
    number,
    positive,
    seed,
)
from macaron_fairseq.commands.reading import add_reading, refuse_unclear
from macaron_fairseq.common import files
from macaron_fairseq.common.errors import UserError, explain_missing
from macaron_fairseq.common.names import flag, refuse_labels

if TYPE_CHECKING:
    from macaron_fairseq.analysis.models import TrainedModel
    from macaron_fairseq.analysis.sentences import Sample

OF_TOKENS = ("threshold", "beta", "shown_sentences")  # which --jacobian does not measure
DESCRIPTION = """\
Run the encoder and the decoder of trained models on sentences, and write what each sub-layer does
to the tokens. How the tokens lie: cosines, clusters, effective rank, energy. How they move:
relative step size, its angle to the state, velocity on the sphere. How exact a step is: the
Jacobian's spectrum, local error by step halving. Several models are shown next to each other. Works
for translation models and for language models, masked and causal, of this package and of fairseq
(transformer, transformer_lm, roberta, masked_lm), pre-norm and post-norm. With --jacobian it
measures the residual stream instead: the spectra of whole layers' Jacobians along depth.
"""

EXAMPLES = """\
DATA is the data folder of a recipe, with preprocessing.json, code and data-bin/, or what
fairseq-preprocess wrote. Without INPUT, the sentences are those of its set --gen-subset. INPUT is
raw text, preprocessed as preprocessing.json says; where DATA has none, tokens with spaces between.
A model refuses sentences that are longer than its positions: --longest leaves them out.
The decoder reads the target side of the set, or TARGET, as in training. Without either it reads
what the model itself translates the sentence to (beam 5).

FOLDER then holds
  dynamics.html  all pictures and figures, one file that needs nothing else: point at what you want
                 to know the value of, hide models, see the difference from the first, look at
                 single sentences with their attention maps
  dynamics.json  the figures: means, standard deviations, histograms of the cosines
  dynamics.csv   the means, a line each, for a table or pandas
  dynamics.png   a small picture of the most important ones
  dynamics-cosines.png  histograms of the cosines of all pairs of tokens, layer by layer
  tokens.html    with --tokens-page: tokens that move through the layers, in three dimensions
and a table of the whole layers is printed, in Markdown. With --jacobian, the files are
  residual.html, residual.json, residual.csv
  residual.png, residual-spectra-SIDE.png, residual-singular-values.png
  residual-topology.png  communities of coordinates, and their coupling to amplification
  residual-interventions.png  with --remove, where layers lose a part one by one

examples:
  macaron-fairseq dynamics --path transformer.pt macaron.pt --data DATA -o dynamics
  macaron-fairseq dynamics --path macaron.pt --data data-bin --gen-subset valid --sentences 500
  macaron-fairseq dynamics --path macaron.pt --data DATA news.en --target news.de
  macaron-fairseq dynamics --path macaron.pt --data DATA --tokens-page --shown-sentences 4
  macaron-fairseq dynamics --jacobian --initial 1 2 3 --remove non-normal --data DATA \\
    --path base/seed*/checkpoint_best.pt macaron/seed*/checkpoint_best.pt
  echo "A dog runs." | macaron-fairseq dynamics --path macaron.pt --data DATA -
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and what its --help says."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("input", nargs="?", type=Path, metavar="INPUT", help="raw text; - is standard input")
    add(
        "--path",
        required=True,
        nargs="+",
        action="extend",
        type=Path,
        metavar="FILE",
        help="checkpoints, the baseline first",
    )
    add(
        "--label",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="a name for each of them (default: the architecture or, where two share it, the "
        "scheme). With --jacobian, checkpoints of one label are seeds of one model",
    )
    add("--data", required=True, type=Path, metavar="DATA", help="the data folder, see below")
    add_reading(parser, f"(default: {SENTENCES})")
    add(
        "--jacobian-sentences",
        type=positive,
        default=JACOBIAN_SENTENCES,
        metavar="N",
        help="take Jacobians at one token of each of N of them, evenly spread (default: "
        f"{JACOBIAN_SENTENCES})",
    )
    add(
        "--shown-sentences",
        type=not_negative_integer,
        metavar="N",
        help="show N of them one by one: which tokens come close in which layer, and the attention "
        "of each head; spread over those of at most 32 tokens. Where there is none it is the "
        "shortest, up to 128. Each takes some 20 to 200 kB of the page; 0 for none (default: 8)",
    )
    add(
        "--tokens-page",
        action="store_true",
        help="write tokens.html as well: those sentences' tokens in three principal components, "
        "with a slider from sub-layer to sub-layer, to turn and to point at (needs plotly)",
    )
    add(
        "--threshold",
        type=number(-1, 1, "a cosine: give a number from -1 to 1"),
        metavar="COSINE",
        help="tokens whose cosine is above it form a cluster (default: 0.9)",
    )
    add(
        "--beta",
        type=above_zero,
        metavar="X",
        help="inverse temperature in the energy (default: 1)",
    )
    add("--seed", type=seed, default=1, metavar="N", help="seed of all random draws (default: 1)")
    add(
        "--title",
        metavar="TEXT",
        help="the title of the page",
    )
    residual_stream.add_arguments(parser)
    add("--cpu", action="store_true", help="compute on the CPU even if there is a GPU")
    add(
        "-o",
        "--output",
        type=folder,
        default=Path("dynamics"),
        metavar="FOLDER",
        help="where to write the files, in place of those of before (default: dynamics)",
    )
    parser.set_defaults(run=run)


def refuse_unused(args: argparse.Namespace) -> None:
    """Raise a `UserError` if there are options that nothing would use."""
    refuse_unclear(args)
    for name in OF_TOKENS if args.jacobian else ():
        if getattr(args, name) is not None:
            raise UserError(f"{flag(name)} has no meaning with --jacobian: drop one of the two")
    of_graph = [name for name in vars(args) if name.startswith("graph_")]
    for name in ("initial", "remove", "layers", *of_graph):
        value = getattr(args, name)
        is_given = value is not None and value is not False and value != []
        if is_given and not args.jacobian:
            raise UserError(f"{flag(name)} is for the residual stream: add --jacobian")
    if args.layers and not args.remove:
        raise UserError("--layers says where --remove removes something: add --remove")


def refuse_text(paths: Sequence[Path]) -> None:
    """Raise a `UserError` if a path is INPUT, which the argument before it has taken."""
    for path in paths:
        # Loading says what is wrong with one that is not there, or empty.
        is_read = path.is_file() and os.access(path, os.R_OK)
        is_text = is_read and (path.stat().st_size or path.suffix != ".pt")
        if str(path) == "-" or (is_text and not files.is_stored(path)):
            raise UserError(
                f"{path} is not a checkpoint, but --path takes all after it: name INPUT before "
                "--path, or after another option"
            )


def run(args: argparse.Namespace) -> None:
    """Measure the models and write FOLDER."""
    refuse_unused(args)
    refuse_text(args.path)
    refuse_labels(args.label, args.path, may_repeat=args.jacobian)
    import torch

    from macaron_fairseq import plugin  # noqa: F401 - registers the models with fairseq

    try:
        import matplotlib  # noqa: F401 - which is needed at the end

        from macaron_fairseq.analysis import interactive_page, models, sentences

        if args.jacobian:
            import statsmodels  # noqa: F401 - which is needed at the end

            from macaron_fairseq.analysis.residual import communities, subjects

            communities.refuse_missing(args.graph_method)
    except ImportError as error:
        explain_missing(error, "scipy matplotlib threadpoolctl networkx statsmodels", "dynamics")

    files.refuse_unwritable(args.output)
    if args.tokens_page:
        interactive_page.library()  # if it is missing, one is to learn it now
        if args.jacobian:
            raise UserError("--tokens-page and --jacobian write other files: run them one by one")
        if args.shown_sentences == 0:
            raise UserError("--tokens-page shows sentences: give --shown-sentences 1 or more")
    device = torch.device("cuda" if torch.cuda.is_available() and not args.cpu else "cpu")
    labels = args.label or (subjects.labels(args.path) if args.jacobian else None)
    loaded, data = models.load(
        args.path, args.data, args.source_lang, args.target_lang, labels, device
    )
    subset, limit = args.gen_subset or "test", args.sentences or SENTENCES
    sample = sentences.read(data, args.input, args.target, subset, limit, args.longest)
    measure = residual_stream.measure if args.jacobian else measure_tokens
    measure(args, loaded, sample)


def measure_tokens(
    args: argparse.Namespace, models: "Sequence[TrainedModel]", sample: "Sample"
) -> None:
    """Write what layers do to the tokens, state by state."""
    from macaron_fairseq.analysis import output
    from macaron_fairseq.analysis.dynamics import measurement, report, token_page

    chosen = {name: getattr(args, name) for name in OF_TOKENS if getattr(args, name) is not None}
    settings = measurement.Settings(
        jacobian_sentences=args.jacobian_sentences, seed=args.seed, **chosen
    )
    content = measurement.compare(models, sample, settings, args.title or measurement.TITLE)
    contents = report.contents(content)
    if args.tokens_page:
        title = {"title": args.title} if args.title else {}
        contents["tokens.html"] = token_page.page(models, sample, settings.shown_sentences, **title)
    written = output.write(args.output, contents)
    output.report(report.table(content["models"]), written)
