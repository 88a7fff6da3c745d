"""What recipes of many runs share: the options of the runner, and those that it hands to each run.

A runner starts a process for each run, here or on a cluster (`launch`). Tasks are those of a file
such as many-tasks/tasks.yaml.
"""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common import ask_fairseq, launch
from common.options import Once, refuse_split, seeds_of
from macaron_fairseq.commands.arguments import positive


@dataclass(frozen=True)
class Options:
    """What all runs of a call share."""

    work: Path
    given: Path | None  # --from
    cpu: bool
    file: Path  # of the tasks
    max_update: int | None = None
    max_tokens: int | None = None  # on a device at once
    extra: tuple[str, ...] = ()  # flags of fairseq-train after --
    is_usual: bool = True  # whether counts and hashes are checked

    def words(self) -> list[str]:
        """These as options of a run's process; what is in `extra` comes last, after --."""
        result = ["--work", str(self.work)]
        result += ["--from", str(self.given)] if self.given else []
        result += ["--cpu"] * self.cpu + ["--any-sizes"] * (not self.is_usual)
        result += ["--max-update", str(self.max_update)] if self.max_update else []
        result += ["--max-tokens", str(self.max_tokens)] if self.max_tokens else []
        return [*result, "--tasks-file", str(self.file)]

    def extra_words(self) -> list[str]:
        """The end of a run's command line."""
        return ["--", *self.extra] if self.extra else []


def add_run_options(parser: argparse.ArgumentParser, file: Path) -> None:
    """Add the options of a run's process; `file` is the usual one of tasks."""
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--from", dest="given", type=Path)
    parser.add_argument("--tasks-file", type=Path, default=file)
    for name in ("--max-update", "--max-tokens"):
        parser.add_argument(name, type=int)
    for flag in ("--cpu", "--any-sizes"):
        parser.add_argument(flag, action="store_true")


def of_run(args: Any, extra: Iterable[str]) -> Options:
    """What the options of `add_run_options` say, and the flags after --."""
    given = args.given and args.given.absolute()
    return shared(args, extra, args.work.absolute(), given, not args.any_sizes)


def shared(
    args: Any, extra: Iterable[str], work: Path, given: Path | None, is_usual: bool
) -> Options:
    """The options of a run or a runner: those that both have on the command line, and these."""
    return Options(
        work=work,
        given=given,
        cpu=args.cpu,
        file=args.tasks_file.absolute(),
        max_update=args.max_update,
        max_tokens=args.max_tokens,
        extra=tuple(extra),
        is_usual=is_usual,
    )


def add_options(parser: argparse.ArgumentParser, name: str, file: Path) -> None:
    """Add the options of a runner that all its recipes have.

    Args:
        parser: its own.
        name: of the recipe.
        file: the usual one of tasks.
    """
    add = parser.add_argument
    add(
        "--seeds",
        type=seeds_of,
        action=Once,
        metavar='"1 2"',
        default=[1],
        help="train each with each of these seeds (default: 1)",
    )
    add("--max-update", type=positive, metavar="N", help="end each run at N updates")
    add(
        "--max-tokens",
        type=positive,
        metavar="N",
        help="tokens on a device at once; the batch of an update stays the same",
    )
    add(
        "--from",
        dest="folder",
        type=Path,
        metavar="FOLDER",
        help="take the data from there: a folder for each family of tasks, such as multi30k",
    )
    add("--work", type=Path, metavar="FOLDER", help=f"default: runs/{name}")
    launch.add_options(add)
    add("--cpu", action="store_true", help="compute on the CPU even if there is a GPU")
    add("--sizes", choices=["any"], help="any: do not check counts and checksums of the data")
    add("--tasks-file", type=Path, default=file, metavar="FILE", help=f"default: {file.name}")


def of_runner(args: Any, extra: Iterable[str], name: str, folders: Iterable[str]) -> Options:
    """What the options of `add_options` say; ends the program where --from lacks a folder.

    Args:
        args: with these options.
        extra: flags of fairseq-train after --.
        name: of the recipe.
        folders: of the tasks, in that of --from.
    """
    given = args.folder and args.folder.absolute()
    if given and not given.is_dir():
        sys.exit(f"{given}, given by --from, is not a folder")
    for folder in sorted({*folders}):
        if given and not (given / folder).is_dir():
            sys.exit(f"{given}, given by --from, has no folder {folder}")
    work = (args.work or Path(__file__).resolve().parents[2] / "runs" / name).absolute()
    refuse_split(work)
    return shared(args, extra, work, given, not args.sizes)


def on_device(options: Options, launcher: str) -> Options:
    """The same, with `cpu` where the runs will be on this machine and it has no GPU.

    What stands for their settings tells precisions apart, so it must know.
    """
    if options.cpu or launcher != "local":
        return options
    return replace(options, cpu=not ask_fairseq.count_usable())
