"""What a training run was made from: flags, data, code, machine (`macaron-fairseq manifest`)."""

import datetime
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from macaron_fairseq.common import environment, files
from macaron_fairseq.common.errors import UserError
from macaron_fairseq.evaluation.training import training_flags
from macaron_fairseq.text import data_folder

NAME = "manifest.json"
HINT = "write it again by `macaron-fairseq manifest`"
FIELDS = {"arch": str, "seed": int, "flags": list, "data": dict, "starts": list}
OF_START = {"date": str, "code": dict | None, "versions": dict, "hardware": dict}
OF_HARDWARE = {"cpu": str, "cores": int, "memory_gib": int | float, "gpus": list, "system": str}
# What is hashed of the output of fairseq-preprocess; its logs may differ.
HASHED = ("dict.*", "*.bin", "*.idx")


def write(run: Path, data: Path, command_line: Sequence[str]) -> Path:
    """Record in RUN/manifest.json that a training run starts or resumes, and return its path.

    A run that resumes, or its teacher, may have moved. It may divide a batch otherwise among
    devices, and end elsewhere, unless its learning rate falls until the end; all else must be the
    same. The flags of each start are kept.

    Args:
        run: the folder of the run.
        data: the folder with preprocessing.json and data-bin.
        command_line: the flags of fairseq-train.

    Raises:
        UserError: if the run had other flags or other data, or a file is missing.
    """
    path = run / NAME
    content: dict[str, Any] = {
        **arch_and_seed(command_line),
        "flags": list(command_line),
        "data": describe(data),
        "starts": [],
    }
    if learnt := learnt_from(command_line):
        content["learnt_from"] = learnt
    folders = {run, save_folder(training_flags.parse(command_line))}
    # Without a checkpoint nothing came of earlier starts.
    if path.exists() and any(x for folder in folders for x in folder.glob("checkpoint*.pt")):
        earlier = read(run, "choose another folder for the run or remove this one")
        refuse_other(run, earlier, content)
        content["starts"] = earlier["starts"]
    now = datetime.datetime.now(datetime.timezone.utc)
    content["starts"].append(
        {
            "date": now.isoformat(timespec="seconds"),
            "flags": list(command_line),
            "code": environment.code(),
            "versions": environment.versions(),
            "hardware": environment.hardware(),
        }
    )
    files.write(path, files.as_json(content))
    return path


def read(run: Path, hint: str) -> dict[str, Any]:
    """The manifest in the folder of a run; `hint` as in `files.load_json`.

    Raises:
        UserError: if it is missing or is not as `write` leaves it.
    """
    path = run / NAME
    found = files.read_json(path, FIELDS, hint)
    data = found["data"]
    if not (
        data_folder.are_texts(found["flags"])
        and data_folder.are_texts(data.get("tests"))
        and data_folder.are_texts([data.get(x) for x in ("source", "target", "fingerprint")])
        and all(map(is_start, found["starts"]))
        and data_folder.is_mapping(data.get("sha256", {}))
        and data_folder.is_mapping(found.get("learnt_from", {}))
    ):
        raise UserError(f"{path} is not as expected: {hint}")
    return found


def trained_by(run: Path) -> dict[str, Any]:
    """The CPU, the GPUs and the code that trained a run, as in `environment.summary`.

    Where its starts differ, all CPUs and versions of the code are named, and the last one's GPUs.
    """
    starts = read(run, "train again in another folder")["starts"]
    codes = [x["code"] for x in starts if x["code"]]
    cpus = dict.fromkeys(x["hardware"]["cpu"] for x in starts)
    revisions = dict.fromkeys(map(environment.revision, codes))
    gpus = starts[-1]["hardware"]["gpus"]
    return {"cpu": "; ".join(cpus), "gpus": gpus, "revision": ", ".join(revisions) or None}


def is_start(value: Any) -> bool:
    """Whether it is a start as `write` notes it."""
    return has_fields(value, OF_START) and has_fields(value["hardware"], OF_HARDWARE)


def has_fields(value: Any, kinds: Mapping[str, Any]) -> bool:
    """Whether it is an object with such values."""
    return isinstance(value, dict) and all(
        name in value and isinstance(value[name], kind) for name, kind in kinds.items()
    )


def run_of(checkpoint: Path) -> Path | None:
    """The folder of the run that left a checkpoint, by its manifest; None without one.

    It is the checkpoint's folder, or the one above, as of averaged ones.
    """
    checkpoint = checkpoint.absolute()  # and not resolved: beside a link, as the manifest is
    for folder in (checkpoint.parent, checkpoint.parent.parent):
        with suppress(UserError, KeyError, TypeError):  # not every manifest.json is one of ours
            if data_folder.is_mapping(files.load_json(folder / NAME, HINT)["data"]["sha256"]):
                return folder
    return None


def data_hashes(checkpoint: Path) -> dict[str, str]:
    """The SHA-256 of the data files that a checkpoint's run was trained with, by name.

    Empty where no manifest tells, see `run_of`.
    """
    run = run_of(checkpoint)
    return files.load_json(run / NAME, HINT)["data"]["sha256"] if run else {}


def arch_and_seed(command_line: Sequence[str]) -> dict[str, Any]:
    """The architecture and the seed that the flags name; fairseq's seed is 1 if they do not."""
    found = training_flags.parse(command_line)
    arch = found.get("--arch")
    if not arch:
        raise UserError("the flags of fairseq-train name no architecture: add --arch ARCH")
    seed = " ".join(found.get("--seed", ["1"]))
    try:
        return {"arch": arch[0], "seed": int(seed)}
    except ValueError as error:
        raise UserError(f"the seed '{seed}' is not a whole number: give --seed N") from error


def learnt_from(command_line: Sequence[str]) -> dict[str, str]:
    """The SHA-256 of what flags name for a student to learn from, by flag, as far as it is here.

    Of a data folder it is that of its BPE codes and dictionaries.
    """
    given, found = training_flags.parse(command_line), {}
    for name in training_flags.LEARNT_FROM:
        value = " ".join(given.get(name, ()))
        paths = [Path(x) for x in ([value] if files.is_there(value) else value.split(os.pathsep))]
        named = [file for path in paths for file in hashed(path)]
        if value and all(file.is_file() for file in named):
            found[name] = " ".join(map(files.sha256, named))
    return found


def learnt_before(run: Path) -> dict[str, str]:
    """What the manifest of a run says of `learnt_from`; empty where there is none."""
    with suppress(UserError):
        found = read(run, "")
        return found.get("learnt_from", {})
    return {}


def hashed(path: Path) -> list[Path]:
    """The file itself; of a data folder what makes token numbers of text."""
    if not path.is_dir():
        return [path]
    return [path / data_folder.CODES, *sorted(path.glob("data-bin/dict.*"))]


def hashes_of(flag: str, *manifests: dict[str, Any]) -> list[str]:
    """What some manifests know of the files that a flag names; "" where it is nothing."""
    return [x.get("learnt_from", {}).get(flag, "") for x in manifests]


def describe(data: Path) -> dict[str, Any]:
    """What identifies prepared data: its languages, test sets, fingerprint and files.

    A recipe has written these into preprocessing.json; in a folder that was made by hand the data
    themselves tell.
    """
    hint = "run the stage prepare first, or write it by hand"
    made = files.read_json(data / data_folder.NAME, {"source": str, "target": str}, hint)
    folder = data / "data-bin"
    paths = sorted(path for pattern in HASHED for path in folder.glob(pattern))
    if not paths:
        raise UserError(f"{folder} holds no data of fairseq-preprocess: {hint}")
    codes = data / data_folder.CODES
    if codes.is_file():
        paths.append(codes)
    references = sorted(path.stem for path in (data / "reference").glob(f"*.{made['target']}"))
    tests = made.get("tests", references)
    if not data_folder.are_texts(tests):
        raise UserError(f"{data / data_folder.NAME} has no list of names as 'tests': {hint}")
    return {
        "fingerprint": made.get("fingerprint") or data_folder.fingerprint(folder),
        "source": made["source"],
        "target": made["target"],
        "tests": tests,
        "sha256": {path.name: files.sha256(path) for path in paths},
    }


def refuse_other(run: Path, earlier: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise a `UserError` if a run would go on with other flags or other data."""
    fix = "choose another folder, or remove this one"
    was, given = training_flags.parse(earlier["flags"]), training_flags.parse(now["flags"])
    for found in (was, given):  # from another of its own checkpoints it goes on all the same
        restored = " ".join(found.get("--restore-file", ()))
        own = run.resolve(), save_folder(found).resolve()
        if restored == "checkpoint_last.pt" or (
            restored and Path(restored).resolve().parent in own
        ):
            del found["--restore-file"]
    for name in [*was, *given]:
        if all(hashes := hashes_of(name, earlier, now)):
            if hashes[0] != hashes[1]:
                raise UserError(
                    f"{run} was trained with {training_flags.show(name, was)}, whose content is "
                    f"other than that of {training_flags.show(name, given)}: {fix}"
                )
            continue
        is_fixed = name not in training_flags.CHANGEABLE or (
            name == "--max-update" and training_flags.falls_until_the_end(was)
        )
        if is_fixed and not training_flags.is_same(was.get(name), given.get(name)):
            raise UserError(
                f"{run} was trained with {training_flags.show(name, was)}, and the flags now say "
                f"{training_flags.show(name, given)}: {fix}"
            )
    if difference := first_difference(earlier["data"], now["data"]):
        raise UserError(f"{run} was trained with other data, {difference} differs: {fix}")


def save_folder(flags: Mapping[str, Sequence[str]]) -> Path:
    """Where fairseq-train writes checkpoints, by its flags as a table."""
    return Path(" ".join(flags.get("--save-dir", ())) or "checkpoints")


def first_difference(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """What differs first between two descriptions of data; None if nothing does.

    The files come before the fingerprint: they say more.
    """
    hashes, other_hashes = one.get("sha256", {}), other.get("sha256", {})
    for name in [*hashes, *other_hashes]:
        was, now = hashes.get(name), other_hashes.get(name)
        if name == data_folder.CODES:
            if was and now and was != now:  # manifests of earlier versions do not have it
                return name
        elif was != now:
            return f"data-bin/{name}"
    for key in [*one, *other]:
        if key != "sha256" and one.get(key) != other.get(key):
            return f"its {key}"
    return None
