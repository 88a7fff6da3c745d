"""Fetching a file, checking that it is whole, and recording its SHA-256 in SHA256SUMS next to it.

The addresses are tried in order. What a broken transfer leaves, FILE.part, is gone on from at once,
at the next address or in the next run. Files without a checksum inside, .tar and unknown endings,
begin anew unless their SHA-256 is known.

A .tgz, .tar.gz, .gz, .zip or .tar is read to its end, others must not be empty, and none may be
a web page. The SHA-256 must be the one that is asked for or else, if it has one, of SHA256SUMS.

curl makes the transfers, so its variables for proxies apply. It gives up an address after
FETCH_CONNECT_SECONDS (20) without a connection, or FETCH_STALL_SECONDS (30) with less than
FETCH_STALL_SPEED (10000) bytes a second.

Nothing here keeps two processes apart. Whoever calls `have` holds a lock (`steps.hold`), which curl
inherits: if this process is killed, the next one waits for its curl.
"""

import filecmp
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from common.steps import Words, ending_with_this, start, waited
from macaron_fairseq.common import signals

TRIES = 5  # per address, as long as each brings something new
TIMED_OUT, CANNOT_RESUME = 28, 33  # exit statuses of curl


class FetchError(Exception):
    """Why an address or a file will not do."""


def have(
    place: Path, addresses: Sequence[str], folder: Path | None = None, sha256: str = ""
) -> str:
    """Have a file, whole and recorded; returns its SHA-256, or ends the program.

    Args:
        place: the file. Where it is here already, it is checked.
        addresses: where it can be had; there may be none.
        folder: copy it from there, and fetch nothing.
        sha256: what it must have; "": what SHA256SUMS says.
    """
    known = recorded(place)
    expected = sha256.lower() or known
    is_here = place.exists()
    with signals.as_exits():  # large files take minutes, and a signal is to be told of
        if is_here:
            digest = checked(place, folder, expected, contents=not known)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            part = place.with_name(place.name + ".part")
            if folder:
                digest = copy(folder / place.name, addresses, part, expected)
            else:
                digest = fetch(addresses, part, place.name, expected)
            part.replace(place)
        if digest != known:
            record(place, digest)
    tell(f"{place.name} is here already" if is_here else f"{place} is complete")
    return digest


def tell(text: str) -> None:
    """Tell the user; standard output is for what a recipe finds out."""
    print(text, file=sys.stderr, flush=True)


def checked(place: Path, folder: Path | None, expected: str, contents: bool) -> str:
    """The SHA-256 of a file that is here; ends the program where it is not what it should be."""
    source = folder / place.name if folder else place
    if source.is_file() and not filecmp.cmp(source, place, shallow=False):
        sys.exit(
            f"{place} is here already, but {source} is another file: to take that one, remove the "
            f"first, and its line in {place.with_name('SHA256SUMS')}"
        )
    try:
        return verify(place, place.name, expected, contents)
    except FetchError as error:
        sys.exit(f"{place} {error}: remove it to fetch it again")


def copy(source: Path, addresses: Sequence[str], part: Path, expected: str) -> str:
    """Copy from a local folder; returns the SHA-256, or ends the program."""
    if not source.is_file():
        sys.exit(f"{source} is missing: {fetch_it(addresses)}")
    shutil.copyfile(source, part)  # a hard link would follow changes of the source
    try:
        return verify(part, source.name, expected)
    except FetchError as error:
        part.unlink()
        sys.exit(f"{source} {error}: {fetch_it(addresses, 'it again')}")


def fetch_it(addresses: Sequence[str], what: str = "it") -> str:
    """Where the user can have the file, as the end of a sentence."""
    where = f" from {' or '.join(addresses)}" * bool(addresses)
    return f"fetch {what}{where}"


def fetch(addresses: Sequence[str], part: Path, name: str, expected: str) -> str:
    """Fetch from the first address that works; returns the SHA-256, or ends the program."""
    if not addresses:
        sys.exit(f"{name} has no address to be fetched from: name its folder with --from")
    if not shutil.which("curl"):
        sys.exit(
            "the command curl is missing: install it (apt, dnf, brew or conda install curl), or "
            f"{fetch_it(addresses, name)} and name its folder with --from"
        )
    reasons = ""
    for address in addresses:
        tell(f"fetching {name} from {address}")
        try:
            return download(address, part, name, expected)
        except FetchError as error:
            tell(f"that failed: {error}")
            reasons += f"  {address}: {error}\n"
    sys.exit(
        f"{name} could not be fetched:\n{reasons}Run this again to go on from what came so far, or "
        "fetch the file by hand and name its folder with --from."
    )


def download(address: str, part: Path, name: str, expected: str) -> str:
    """Fetch into `part`; returns its SHA-256, or raises `FetchError`."""
    # Parts of different files must not pass for one: go on only where a checksum would tell.
    resumable = expected or name.lower().endswith((".gz", ".tgz", ".zip"))
    for _ in range(TRIES if resumable else 1):
        if not resumable:
            part.unlink(missing_ok=True)
        had = size(part)
        status, reason = curl(address, part, name)
        if status == 0:
            try:
                return verify(part, name, expected)
            except FetchError as error:
                part.unlink()
                reason = f"what came {error}"
                if not had:
                    break
        elif status == CANNOT_RESUME and had:
            part.unlink()
        elif status == TIMED_OUT or size(part) <= had:
            break
    raise FetchError(reason)


def curl(address: str, part: Path, name: str) -> tuple[int, str]:
    """Append to `part` what it lacks; curl's exit status, and why it failed."""
    limit = os.environ.get
    terminal = sys.stderr.isatty()
    words: Words = [
        *("curl", "--fail", "--location", "--globoff", "--continue-at", "-"),
        *(["--proto-redir", "=https"] if address.startswith("https:") else []),
        *("--connect-timeout", limit("FETCH_CONNECT_SECONDS", "20")),
        *("--speed-time", limit("FETCH_STALL_SECONDS", "30")),
        *("--speed-limit", limit("FETCH_STALL_SPEED", "10000")),
        *("--write-out", "%{http_code} %{errormsg}"),
        "--progress-bar" if terminal else "--silent",
        *("--output", part, "--url", address),
    ]
    process = start(
        words,
        stdout=subprocess.PIPE,
        stderr=None if terminal else subprocess.DEVNULL,
        encoding="utf-8",
        errors="replace",
    )
    with process, ending_with_this(process):
        status = process.wait() if terminal else waited(process, name, part)
        http, _, message = process.communicate()[0].partition(" ")
    if status == 0 or http == "416":  # 416: nothing is left to send
        return 0, ""
    return status, message or f"curl exit status {status}, HTTP status {http}"


# --- Whether a file is whole ---------------------------------------------------------------------


def verify(path: Path, name: str, expected: str, contents: bool = True) -> str:
    """The SHA-256 of a file that is what its name and `expected` say; else raises `FetchError`."""
    digest, beginning = hashlib.sha256(), b""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            beginning = beginning or block[:500].lstrip().lower()
            digest.update(block)
    if not size(path):
        raise FetchError("is empty")
    if beginning.startswith((b"<!doctype html", b"<html")):
        raise FetchError("is a web page instead of the file")
    if contents:
        try:
            read_archive(path, name.lower())
        except Exception as error:
            raise FetchError(f"is not a whole {Path(name).suffix} file ({error})") from None
    if expected not in ("", digest.hexdigest()):
        raise FetchError(
            f"has the SHA-256 {digest.hexdigest()}, but benchmark.yaml or SHA256SUMS says "
            f"{expected} (if you mean this file, remove its line in SHA256SUMS, and give "
            "--sizes any)"
        )
    return digest.hexdigest()


def read_archive(path: Path, name: str) -> None:
    """Read a file as what its name says; a damaged one raises errors of many kinds."""
    if name.endswith((".gz", ".tgz")):
        with gzip.open(path) as stream:
            if name.endswith((".tar.gz", ".tgz")):
                with tarfile.open(fileobj=stream, mode="r|") as archive:
                    for _ in archive:
                        pass
            while stream.read(1 << 20):  # the checksum comes last
                pass
    elif name.endswith(".zip"):
        with zipfile.ZipFile(path) as members, path.open("rb") as file:
            if damaged := members.testzip():
                raise FetchError(f"{damaged} is damaged")
            file.seek(-22 - len(members.comment), os.SEEK_END)
            if file.read(4) != b"PK\5\6":  # zipfile does not mind what follows the archive
                raise FetchError("more follows its end")
    elif name.endswith(".tar"):
        with tarfile.open(path, "r:") as archive, path.open("rb") as file:
            for _ in archive:
                pass
            file.seek(archive.offset)  # tarfile takes a damaged header for the end
            if file.read(512) != bytes(512):
                raise FetchError(f"damaged at byte {archive.offset}")


def size(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


# --- SHA256SUMS ----------------------------------------------------------------------------------


def sums_lines(place: Path) -> list[bytes]:
    """The lines of SHA256SUMS, in the format of sha256sum: digest, two signs, name."""
    sums = place.with_name("SHA256SUMS")
    text = sums.read_bytes() if sums.exists() else b""
    return [line.rstrip(b"\r") for line in text.split(b"\n") if line]


def recorded(place: Path) -> str:
    """What SHA256SUMS says of the file; "" where it says nothing."""
    for line in sums_lines(place):
        if line[66:] == os.fsencode(place.name):
            return line[:64].decode("ascii", "replace").lower()
    return ""


def record(place: Path, digest: str) -> None:
    """Put the file's line into SHA256SUMS, in place of an older one."""
    name = os.fsencode(place.name)
    lines = [line for line in sums_lines(place) if line[66:] != name]
    lines.append(digest.encode() + b"  " + name)
    lines.sort(key=lambda line: line[66:])  # the same text in whatever order files come
    part = place.with_name("SHA256SUMS.part")
    part.write_bytes(b"\n".join([*lines, b""]))
    part.replace(place.with_name("SHA256SUMS"))
