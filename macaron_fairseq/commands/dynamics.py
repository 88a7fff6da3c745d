"""`macaron-fairseq dynamics`: what trained models do to the tokens of real sentences."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from macaron_fairseq.commands.arguments import above_zero, not_negative_integer, positive
from macaron_fairseq.common.errors import UserError, explain_missing

DESCRIPTION = """\
Run the encoder and the decoder of trained models on sentences, and write what each sub-layer does
to the tokens. How the tokens lie: cosines, clusters, effective rank, energy. How they move:
relative step size, its angle to the state, velocity on the sphere. How exact a step is: the
Jacobian's spectrum, local error by step halving. Several models are shown next to each other. Works
for translation models and for language models, masked and causal, of this package and of fairseq
(transformer, transformer_lm, roberta, masked_lm), pre-norm and post-norm.
"""

EXAMPLES = """\
DATA is the data folder of a recipe, with preprocessing.json, code and data-bin/, or what
fairseq-preprocess wrote. Without INPUT, the sentences are those of its set --gen-subset. INPUT is
raw text, preprocessed as preprocessing.json says; where DATA has none, tokens with spaces between.
The decoder reads the target side of the set, or TARGET, as in training. Without either it reads
what the model itself translates the sentence to (beam 5).

OUTPUT then holds
  dynamics.html  all pictures and figures, one file that needs nothing else: point at what you want
                 to know the value of, hide models, see the difference from the first, look at
                 single sentences with their attention maps
  dynamics.json  the figures: means, standard deviations, histograms of the cosines
  dynamics.csv   the means, a line each, for a table or pandas
  dynamics.png   a small picture of the most important ones
  tokens.html    with --tokens-page: tokens that move through the layers, in three dimensions
and a table of the whole layers is printed, in Markdown.

examples:
  macaron-fairseq dynamics --path transformer.pt macaron.pt --data DATA -o dynamics
  macaron-fairseq dynamics --path macaron.pt --data data-bin --gen-subset valid --sentences 500
  macaron-fairseq dynamics --path macaron.pt --data DATA news.en --target news.de
  macaron-fairseq dynamics --path macaron.pt --data DATA --tokens-page --shown-sentences 4
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
        "scheme)",
    )
    add("--data", required=True, type=Path, metavar="DATA", help="the data folder, see below")
    add("--target", type=Path, metavar="TARGET", help="the translation of INPUT, line by line")
    add(
        "--gen-subset",
        default="test",
        metavar="SET",
        help="the set of DATA to read (default: test)",
    )
    add("--source-lang", metavar="LANG", help="needed if the data folder does not tell")
    add("--target-lang", metavar="LANG", help="needed if it does not tell")
    add(
        "--sentences",
        type=positive,
        default=200,
        metavar="N",
        help="read at most the first N sentences (default: 200)",
    )
    add(
        "--jacobian-sentences",
        type=positive,
        default=16,
        metavar="N",
        help="take Jacobians at one token of each of N of them, evenly spread (default: 16)",
    )
    add(
        "--shown-sentences",
        type=not_negative_integer,
        default=8,
        metavar="N",
        help="show N of them one by one: which tokens come close in which layer, and the attention "
        "of each head; spread over those of at most 32 tokens. Each takes some 20 to 200 kB of the "
        "page; 0 for none (default: 8)",
    )
    add(
        "--tokens-page",
        action="store_true",
        help="write tokens.html as well: those sentences' tokens in three principal components, "
        "with a slider from sub-layer to sub-layer, to turn and to point at (needs plotly)",
    )
    add(
        "--threshold",
        type=cosine,
        default=0.9,
        metavar="COSINE",
        help="tokens whose cosine is above it form a cluster (default: 0.9)",
    )
    add(
        "--beta",
        type=above_zero,
        default=1.0,
        metavar="X",
        help="inverse temperature in the energy (default: 1)",
    )
    add("--seed", type=int, default=1, metavar="N", help="of what is drawn at random (default: 1)")
    add(
        "--title",
        default="Dynamics of trained models",
        metavar="TEXT",
        help="the title of the page",
    )
    add("--cpu", action="store_true", help="use no GPU")
    add(
        "-o",
        "--output",
        type=Path,
        default=Path("dynamics"),
        metavar="OUTPUT",
        help="the folder to write to (default: dynamics)",
    )
    parser.set_defaults(run=run)


def cosine(text: str) -> float:
    """A number from -1 to 1."""
    value = float(text)
    if not -1 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no cosine: give a number from -1 to 1")
    return value


def refuse_text(paths: Sequence[Path]) -> None:
    """Raise a `UserError` if a path is INPUT, which the argument before it has taken."""
    for path in paths:
        is_empty_text = path.suffix != ".pt" and path.is_file() and not path.stat().st_size
        if str(path) == "-" or is_empty_text or not is_stored(path):
            raise UserError(
                f"{path} is no checkpoint, but --path takes all that follows it: name INPUT before "
                "--path, or after another option"
            )


def is_stored(path: Path) -> bool:
    """Whether a file is empty or begins as PyTorch's do: a zip archive or, of old, a pickle."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError:
        return True  # loading it says why not
    return not start or start.startswith((b"PK", b"\x80"))


def run(args: argparse.Namespace) -> None:
    """Measure the models and write OUTPUT."""
    if args.target and not args.input:
        raise UserError("--target is the translation of INPUT: name that file too, or drop it")
    if args.label and len(args.label) != len(args.path):
        raise UserError(
            f"each checkpoint needs a label: there are {len(args.path)} of the one "
            f"and {len(args.label)} of the other"
        )
    refuse_text(args.path)
    import torch

    from macaron_fairseq import plugin  # noqa: F401 - registers the models with fairseq

    try:
        from macaron_fairseq.analysis import (
            dynamics,
            dynamics_report,
            interactive_page,
            models,
            output,
            sentences,
            token_page,
        )
    except ImportError as error:
        explain_missing(error, "scipy matplotlib threadpoolctl", "dynamics")

    output.refuse_unwritable(args.output)
    if args.tokens_page:
        interactive_page.library()  # if it is missing, one is to learn it now
        if not args.shown_sentences:
            raise UserError("--tokens-page shows sentences: give --shown-sentences 1 or more")
    device = torch.device("cuda" if torch.cuda.is_available() and not args.cpu else "cpu")
    loaded, data = models.load(
        args.path, args.data, args.source_lang, args.target_lang, args.label, device
    )
    sample = sentences.read(data, args.input, args.target, args.gen_subset, args.sentences)
    settings = dynamics.Settings(
        args.threshold, args.beta, args.jacobian_sentences, args.shown_sentences, args.seed
    )
    content = dynamics.compare(loaded, sample, settings, args.title)
    contents = dynamics_report.contents(content)
    if args.tokens_page:
        contents["tokens.html"] = token_page.page(loaded, sample, args.shown_sentences)
    written = output.write(args.output, contents)
    output.report(dynamics_report.table(content["models"]), written)
