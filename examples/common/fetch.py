"""Fetch one file, check that it is whole, and record its SHA-256 in SHA256SUMS next to it.

  fetch.py data/corpus.tgz https://one.example/corpus.tgz https://two.example/mirror/corpus.tgz
  fetch.py data/corpus.tgz --from ~/downloads https://one.example/corpus.tgz

The addresses are tried in order. What a broken transfer leaves, FILE.part, is gone on from at once,
at the next address or in the next run. Files without a checksum inside, .tar and unknown endings,
begin anew unless --sha256 is given. With --from nothing is fetched: FILE is copied from that
folder. A file that has no address needs --from.

A .tgz, .tar.gz, .gz, .zip or .tar is read to its end, others must not be empty, and none may be
a web page. The SHA-256 must be that of --sha256 or else, if it has one, of SHA256SUMS.

curl makes the transfers, so its variables for proxies apply. It gives up an address after
FETCH_CONNECT_SECONDS (20) without a connection, or FETCH_STALL_SECONDS (30) with less than
FETCH_STALL_SPEED (10000) bytes a second.
"""

import argparse
import fcntl
import filecmp
import gzip
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TRIES = 5  # per address, as long as each brings something new
TIMED_OUT, CANNOT_RESUME = 28, 33  # exit statuses of curl


class FetchError(Exception):
    """Why an address or a file will not do."""


def size(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold this lock file, and remove it at the end; yields its descriptor."""
    while True:
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(
                    f"waiting for another run, or the curl of a killed one, which holds {path}",
                    flush=True,
                )
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                pass  # some network disks have no locks
            if os.fstat(file.fileno()).st_nlink:  # else that other run has removed it
                try:
                    yield file.fileno()
                finally:
                    path.unlink(missing_ok=True)
                return


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


def verify(path: Path, name: str, expected: str | None, contents: bool = True) -> str:
    """The SHA-256 of a file that is what its name and `expected` say; else raises `FetchError`."""
    digest, start = hashlib.sha256(), b""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            start = start or block[:500].lstrip().lower()
            digest.update(block)
    if not size(path):
        raise FetchError("is empty")
    if start.startswith((b"<!doctype html", b"<html")):
        raise FetchError("is a web page instead of the file")
    if contents:
        try:
            read_archive(path, name.lower())
        except Exception as error:
            raise FetchError(f"is not a whole {Path(name).suffix} file ({error})") from None
    if expected not in (None, digest.hexdigest()):
        raise FetchError(
            f"has the SHA-256 {digest.hexdigest()}, but --sha256 or SHA256SUMS says {expected} "
            "(if this file is meant, remove its line there, and give the recipe --sizes any)"
        )
    return digest.hexdigest()


def sums_lines(destination: Path) -> list[bytes]:
    """The lines of SHA256SUMS, in the format of sha256sum: digest, two signs, name."""
    sums = destination.with_name("SHA256SUMS")
    text = sums.read_bytes() if sums.exists() else b""
    return [line.rstrip(b"\r") for line in text.split(b"\n") if line]


def recorded(destination: Path) -> str | None:
    """What SHA256SUMS says of the file."""
    for line in sums_lines(destination):
        if line[66:] == os.fsencode(destination.name):
            return line[:64].decode("ascii", "replace").lower()
    return None


def record(destination: Path, digest: str) -> None:
    """Put the file's line into SHA256SUMS, in place of an older one."""
    name = os.fsencode(destination.name)
    part = destination.with_name("SHA256SUMS.part")
    with locked(destination.with_name("SHA256SUMS.lock")):
        lines = [line for line in sums_lines(destination) if line[66:] != name]
        lines.append(digest.encode() + b"  " + name)
        lines.sort(key=lambda line: line[66:])  # the same text in whatever order files come
        part.write_bytes(b"\n".join([*lines, b""]))
        part.replace(destination.with_name("SHA256SUMS"))


def curl(address: str, part: Path, lock: int) -> tuple[int, str]:
    """Append to `part` what it lacks; curl's exit status, and why it failed."""
    limit = os.environ.get
    terminal = sys.stderr.isatty()
    done = subprocess.run(
        [
            *("curl", "--fail", "--location", "--globoff", "--continue-at", "-"),
            *(["--proto-redir", "=https"] if address.startswith("https:") else []),
            *("--connect-timeout", limit("FETCH_CONNECT_SECONDS", "20")),
            *("--speed-time", limit("FETCH_STALL_SECONDS", "30")),
            *("--speed-limit", limit("FETCH_STALL_SPEED", "10000")),
            *("--write-out", "%{http_code} %{errormsg}"),
            "--progress-bar" if terminal else "--silent",
            *("--output", str(part), "--url", address),
        ],
        stdout=subprocess.PIPE,
        stderr=None if terminal else subprocess.DEVNULL,
        encoding="utf-8",
        errors="replace",
        pass_fds=[lock],  # if we are killed, the next run waits for this curl
    )
    http, _, message = done.stdout.partition(" ")
    if done.returncode == 0 or http == "416":  # 416: nothing is left to send
        return 0, ""
    return done.returncode, message or f"curl exit status {done.returncode}, HTTP status {http}"


def download(address: str, part: Path, name: str, expected: str | None, lock: int) -> str:
    """Fetch into `part`; returns its SHA-256, or raises `FetchError`."""
    # Parts of different files must not pass for one: go on only where a checksum would tell.
    resumable = expected or name.lower().endswith((".gz", ".tgz", ".zip"))
    for _ in range(TRIES if resumable else 1):
        if not resumable:
            part.unlink(missing_ok=True)
        had = size(part)
        status, reason = curl(address, part, lock)
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


def fetch(args: argparse.Namespace, part: Path, name: str, expected: str | None, lock: int) -> str:
    """Fetch from the first address that works; returns the SHA-256, or ends the program."""
    if not args.addresses:
        sys.exit(f"{name} has no address to be fetched from: name its folder with --from")
    if not shutil.which("curl"):
        sys.exit(
            "the command curl is missing: install it (apt, dnf, brew or conda install curl), or "
            f"{fetch_it(args, name)} and name its folder with --from"
        )
    reasons = ""
    for address in args.addresses:
        print(f"fetching {name} from {address}", flush=True)
        try:
            return download(address, part, name, expected, lock)
        except FetchError as error:
            print(f"that failed: {error}", flush=True)
            reasons += f"  {address}: {error}\n"
    sys.exit(
        f"{name} could not be fetched:\n{reasons}Run this again to go on from what came so far, or "
        "fetch the file by hand and name its folder with --from."
    )


def fetch_it(args: argparse.Namespace, what: str = "it") -> str:
    """Where the user can have the file, as the end of a sentence."""
    where = f" from {' or '.join(args.addresses)}" * bool(args.addresses)
    return f"fetch {what}{where}"


def copy(args: argparse.Namespace, part: Path, name: str, expected: str | None) -> str:
    """Copy from a local folder; returns the SHA-256, or ends the program."""
    source = args.folder / name
    if not source.is_file():
        sys.exit(f"{source} is missing: {fetch_it(args)}")
    shutil.copyfile(source, part)  # a hard link would follow changes of the source
    try:
        return verify(part, name, expected)
    except FetchError as error:
        part.unlink()
        sys.exit(f"{source} {error}: {fetch_it(args, 'it again')}")


def is_here(destination: Path, sha256: str | None, folder: Path | None) -> bool:
    """Whether the file is there; ends the program where it is not what it should be."""
    if not destination.exists():
        return False
    source = folder / destination.name if folder else destination
    if source.is_file() and not filecmp.cmp(source, destination, shallow=False):
        sys.exit(
            f"{destination} is here already, but {source} is another file: to take that one, "
            f"remove the first, and its line in {destination.with_name('SHA256SUMS')}"
        )
    known = recorded(destination)
    try:
        digest = verify(destination, destination.name, sha256 or known, contents=not known)
    except FetchError as error:
        sys.exit(f"{destination} {error}: remove it to fetch it again")
    if digest != known:
        record(destination, digest)
    print(f"{destination.name} is here already")
    return True


def checksum(text: str) -> str:
    """An argument that is a SHA-256."""
    if not re.fullmatch("[0-9a-fA-F]{64}", text):
        raise argparse.ArgumentTypeError("a SHA-256 has 64 hexadecimal digits")
    return text.lower()


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("destination", type=Path, metavar="FILE", help="the file to have")
    parser.add_argument("addresses", nargs="*", metavar="ADDRESS", help="where it can be had")
    parser.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="copy it from here")
    parser.add_argument("--sha256", type=checksum, metavar="HEX", help="what it must have")
    args = parser.parse_intermixed_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # as an exception, so that curl ends too
        signal.signal(number, lambda number, _: sys.exit(128 + number))

    destination = args.destination.absolute()
    if is_here(
        destination, args.sha256, args.folder
    ):  # without a lock: the folder may be read-only
        return
    destination.parent.mkdir(parents=True, exist_ok=True)
    with locked(destination.with_name(destination.name + ".lock")) as lock:
        if is_here(destination, args.sha256, args.folder):
            return
        part = destination.with_name(destination.name + ".part")
        expected = args.sha256 or recorded(destination)
        if args.folder:
            digest = copy(args, part, destination.name, expected)
        else:
            digest = fetch(args, part, destination.name, expected, lock)
        part.replace(destination)
        record(destination, digest)
    print(f"{destination} is complete")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"{error}: mend that and run this again")
