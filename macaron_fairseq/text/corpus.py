"""Whole files of raw text to files of tokens, on all cores (`macaron-fairseq tokenize`)."""

import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from macaron_fairseq.common import environment, files, text_lines
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.common.progress import bar
from macaron_fairseq.common.text_lines import Block
from macaron_fairseq.common.workers import Workers
from macaron_fairseq.text.tokenization import Pipeline, refuse_fastbpe

LINES = 2000  # handed to a worker at once


def tokenize(
    texts: Sequence[tuple[str, Path, Path]],
    steps: Sequence[str],
    codes: Path | None = None,
    workers: int | None = None,
) -> None:
    """Write each text after the steps, line for line.

    Args:
        texts: of each its language, the file to read and the one to write; "-" is standard input
            or output.
        steps: see `Pipeline`.
        codes: the BPE merges, for the step "bpe".
        workers: processes; None: one for each core.

    Raises:
        UserError: before anything is written, for a file that is missing, not UTF-8 or named
            twice; or for one that cannot be read or written.
    """
    refuse_mistakes([(source, output) for _, source, output in texts])
    pipelines = {language: Pipeline(steps, language, codes) for language, _, _ in texts}
    if codes and texts and "bpe" in steps:
        refuse_fastbpe(codes)
    if workers is not None and workers < 1:
        raise UserError(f"workers is {workers}: give 1 or more")
    workers = workers or environment.available_cores()
    for _, source, _ in texts:
        text_lines.refuse_other_encodings(source)
    for language, source, output in texts:
        # A bar would stand between the lines of a text that goes to a terminal.
        on_terminal = files.is_stdout(output) and files.is_terminal(sys.stdout)
        with bar(
            f"tokenising {source}", "B", size(source), unit_scale=True, disable=on_terminal
        ) as shown:
            blocks = counted(text_lines.read_blocks(source, LINES), shown)
            files.write_blocks(output, process(blocks, pipelines[language], workers))


def refuse_mistakes(texts: Sequence[tuple[Path, Path]]) -> None:
    """Raise a `UserError` now, not after hours, for a missing input or a repeated output."""
    sources = [source for source, _ in texts]
    outputs = [output.resolve() for _, output in texts]
    if [str(source) for source in sources].count("-") > 1:
        raise UserError("standard input, -, can be one file's input only")
    for source, output in texts:
        if str(source) != "-" and not source.exists():
            raise UserError(f"{source}: no such file")
        for path in (source, output):
            if str(path) != "-" and path.is_dir():
                raise UserError(f"{path} is a folder: name a file")
        if outputs.count(output.resolve()) > 1:
            raise UserError(f"{output} is named as the output of several files")
        if (partial := files.partial_of(output.resolve())) in outputs:
            raise UserError(f"{partial} is what {output} is called while it is written: rename it")
        files.refuse_output(sources, output)


def size(path: Path) -> int | None:
    """How many bytes a file has; a stream does not tell. Counting lines would read it twice."""
    return path.stat().st_size if path.is_file() else None


def counted(blocks: Iterable[Block], shown: tqdm) -> Iterator[Block]:
    """The blocks, whose bytes a bar counts as they are read."""
    for block in blocks:
        shown.update(len(block.content))
        yield block


def process(blocks: Iterable[Block], pipeline: Pipeline, workers: int = 1) -> Iterator[bytes]:
    """Each block after the pipeline, in order, by that many processes; 1 is this process.

    It never reads more than 2 * workers blocks ahead, whatever the size of the corpus.

    Raises:
        UserError: if a block is not UTF-8 or keeps a carriage return, or a worker is killed.
    """
    work = functools.partial(process_block, pipeline=pipeline)
    if workers == 1:
        yield from map(work, blocks)
        return
    with Workers(workers, work, "a smaller --workers") as pool:
        yield from pool.map(blocks)


def process_block(block: Block, pipeline: Pipeline) -> bytes:
    """The block's lines after the pipeline, each ended by a newline.

    Raises:
        UserError: if a carriage return is left in one, at which fairseq would begin another.
    """
    done = [pipeline(line) + "\n" for line in block.lines()]
    content = "".join(done)
    if "\r" in content:
        number = next(n for n, line in enumerate(done, block.first) if "\r" in line)
        raise UserError(
            f"{block.file}, line {number} has a carriage return within it, which fairseq takes for "
            "its end: remove it, or convert the line ends"
        )
    return content.encode()
