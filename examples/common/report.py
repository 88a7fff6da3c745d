"""Score what compare.sh decoded and set the runs side by side: table.md, results.json, curves.png.

BLEU and chrF compare detokenised hypotheses with the raw reference; tokenised BLEU, for comparison
with papers only, compares tokens as they left the model with the tokenised reference.
"""

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from progress import numbers
from sacrebleu.metrics import BLEU, CHRF
from sacremoses import MosesDetokenizer


@dataclass
class Run:
    """What one architecture did."""

    arch: str
    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    tokenized_bleu: float
    parameters: int
    updates: int
    words_per_second: float
    training_seconds: float
    valid_loss: float
    train_curve: list[tuple[int, float]]
    valid_curve: list[tuple[int, float]]


def read_lines(path: Path) -> list[str]:
    """Lines as wc and fairseq count them: only a newline ends one."""
    return path.read_text("utf-8").removesuffix("\n").split("\n")


def read_hypotheses(path: Path, expected: int) -> list[str]:
    """The hypotheses in the order of the test set; ends the program if one is missing."""
    found = {}
    for line in read_lines(path):
        if match := re.fullmatch(r"H-(\d+)\t\S+\t?(.*)", line):
            found[int(match[1])] = match[2]
    if sorted(found) != list(range(expected)):
        sys.exit(
            f"{path} holds {len(found)} hypotheses for {expected} references: decode with "
            "--required-batch-size-multiple 1, on the same test set"
        )
    return [found[i] for i in range(expected)]


def read_log(path: Path) -> tuple[int, list[dict[str, str]], list[dict[str, str]]]:
    """Parameters, and the figures of training and of validation in order of updates."""
    parameters, train, valid = 0, {}, {}
    for line in path.read_text("utf-8", errors="replace").splitlines():
        if match := re.search(r"num\. shared model params: ([\d,]+)", line):
            parameters = int(match[1].replace(",", ""))
        figures = numbers(line)
        if "| train_inner |" in line:
            train[int(figures["num_updates"])] = figures
        elif "| valid |" in line:
            valid[int(figures["valid_num_updates"])] = figures
    return parameters, [train[k] for k in sorted(train)], [valid[k] for k in sorted(valid)]


def score(data: Path, run: Path, lowercase: bool) -> Run:
    """Score one run and read its log."""
    target = (data / "made-from").read_text().split()[2]
    references = read_lines(data / f"test.{target}")
    tokenized = read_lines(data / "tokenized" / f"test.{target}")
    hypotheses = read_hypotheses(run / "hypotheses", len(references))
    detokenizer = MosesDetokenizer(target)
    plain = [detokenizer.detokenize(line.split()) for line in hypotheses]
    bleu, chrf = BLEU(lowercase=lowercase), CHRF(lowercase=lowercase)
    tokens = BLEU(tokenize="none", force=True)
    bleu_score, chrf_score = (m.corpus_score(plain, [references]) for m in (bleu, chrf))
    (run / "hypotheses.txt").write_text("".join(line + "\n" for line in plain), "utf-8")
    parameters, train, valid = read_log(run / "train.log")
    return Run(
        arch=run.name,
        bleu=bleu_score.score,
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf_score.score,
        chrf_signature=str(chrf.get_signature()),
        tokenized_bleu=tokens.corpus_score(hypotheses, [tokenized]).score,
        parameters=parameters,
        updates=int(train[-1]["num_updates"]),
        words_per_second=statistics.median(float(x["wps"]) for x in train if float(x["wps"])),
        training_seconds=float(train[-1]["wall"]),
        valid_loss=min(float(x["valid_loss"]) for x in valid),
        train_curve=[(int(x["num_updates"]), float(x["loss"])) for x in train],
        valid_curve=[(int(x["valid_num_updates"]), float(x["valid_loss"])) for x in valid],
    )


def table(runs: list[Run]) -> str:
    """The runs as a Markdown table, with what is needed to repeat and to compare it."""
    rows = [
        "| model | BLEU | chrF | tokenised BLEU | parameters | updates | words/s | training |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        time = datetime.timedelta(seconds=round(run.training_seconds))
        rows.append(
            f"| `{run.arch}` | {run.bleu:.2f} | {run.chrf:.2f} | {run.tokenized_bleu:.2f} | "
            f"{run.parameters:,} | {run.updates:,} | {run.words_per_second:,.0f} | {time} |"
        )
    device = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} cores"
    )
    rows += [
        "",
        f"- BLEU: `{runs[0].bleu_signature}`",
        f"- chrF: `{runs[0].chrf_signature}`",
        "- tokenised BLEU: of the model's own tokens; not comparable between tokenisations",
        f"- {datetime.date.today()}, {platform.machine()}, {device}, Python "
        f"{platform.python_version()}, PyTorch {torch.__version__}, "
        f"fairseq-fixed {version('fairseq-fixed')}",
    ]
    return "\n".join(rows) + "\n"


def draw(runs: list[Run], path: Path) -> None:
    """The learning curves of all runs in one picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for i, run in enumerate(runs):
        axes.plot(*zip(*run.train_curve, strict=True), f"C{i}", alpha=0.35, lw=1)
        label = f"{run.arch}: best {run.valid_loss:.3f}"
        axes.plot(*zip(*run.valid_curve, strict=True), f"C{i}o-", ms=3, label=label)
    axes.set(xlabel="updates", ylabel="label-smoothed loss (bits per token)")
    axes.set_title("validation loss (dots) and training loss (thin)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Score all runs, print and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="the folder that prepare.sh made")
    parser.add_argument("out", type=Path, help="the folder that compare.sh filled")
    parser.add_argument("archs", nargs="+", help="the architectures to show")
    parser.add_argument("--lowercase", action="store_true", help="ignore case in BLEU and chrF")
    args = parser.parse_args()
    runs = [score(args.data, args.out / arch, args.lowercase) for arch in args.archs]
    text = table(runs)
    (args.out / "results.json").write_text(json.dumps([asdict(run) for run in runs], indent=1))
    draw(runs, args.out / "curves.png")
    (args.out / "table.md").write_text(text, "utf-8")
    print(text)
    print(f"written to {args.out}: table.md, results.json, curves.png")


if __name__ == "__main__":
    main()
