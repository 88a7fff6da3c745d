"""What recipes of many runs share: the options of the runner, and how it hands them to each run.

A runner starts a process for each run, here or on a cluster (`launch`). Tasks are those of a file
such as many-tasks/tasks.yaml.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common import ask_fairseq, launch
from common.options import Once, refuse_no_folder, seeds_of, work_of
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


def as_argument(**asked: Any) -> str:
    """What a run's process is to do, as JSON: its only argument."""
    return json.dumps(asked, default=lambda x: str(x) if isinstance(x, Path) else vars(x))


def from_argument(argument: str) -> dict[str, Any]:
    """What `as_argument` was given, with its `options` as `Options`."""
    asked = json.loads(argument)
    of_json = asked["options"]
    paths = {name: of_json[name] and Path(of_json[name]) for name in ("work", "given", "file")}
    asked["options"] = Options(**{**of_json, **paths, "extra": tuple(of_json["extra"])})
    return asked


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
    add(
        "--max-update",
        type=positive,
        metavar="N",
        help="end each run at N updates (default: the recipe's)",
    )
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


def add_records(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add --records; `more` ends its help."""
    about = "keep a small record of each finished run there; what stands there is not made again"
    parser.add_argument("--records", type=Path, metavar="FOLDER", help=about + more)


def of_runner(args: Any, extra: Iterable[str], name: str, folders: Iterable[str]) -> Options:
    """What these options say; ends the program where a folder is not as it should be.

    Args:
        args: with those of `add_options` and `add_records`.
        extra: flags of fairseq-train after --.
        name: of the recipe.
        folders: of the tasks, in that of --from.
    """
    given = args.folder and args.folder.absolute()
    refuse_no_folder(given, "--from")
    if args.records and args.records.exists():
        refuse_no_folder(args.records, "--records")
    for folder in sorted({*folders}):
        if given and not (given / folder).is_dir():
            sys.exit(f"{given}, given by --from, has no folder {folder}")
    return Options(
        work=work_of(args, name),
        given=given,
        cpu=args.cpu,
        file=args.tasks_file.absolute(),
        max_update=args.max_update,
        max_tokens=args.max_tokens,
        extra=tuple(extra),
        is_usual=not args.sizes,
    )


def on_device(options: Options, launcher: str) -> Options:
    """The same, with `cpu` where the runs will be on this machine and it has no GPU.

    What stands for their settings tells precisions apart, so it must know.
    """
    if options.cpu or launcher != "local":
        return options
    return replace(options, cpu=not ask_fairseq.count_usable())
