"""examples/common/fetch.py against a web server that fails like mirrors do, with tiny archives."""

import gzip
import hashlib
import io
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import zipfile
from contextlib import contextmanager, redirect_stderr
from unittest import mock

import pytest
from common import fetch
from helpers.paths import ROOT
from helpers.server import serve

NAMES = ["a.tgz", "b.tar.gz", "c.gz", "d.zip", "e.tar", "f.txt"]
PREPARE = """
import sys
from pathlib import Path
examples, *words = sys.argv[1:]
sys.path.insert(0, examples)
from common import options, stage_prepare
benchmark = Path(examples, "iwslt14", "benchmark.yaml")
stage_prepare.step = lambda *_: sys.exit(0)  # the archive is all that is wanted
stage_prepare.prepare(options.read(benchmark, "iwslt14", "", ["--sizes", "any", *words]))
"""


def environment(**env):
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return {**kept, "LC_ALL": "C", **env}


@contextmanager
def told(**env):
    """What is said, with these variables of the environment."""
    with (
        mock.patch.dict(os.environ, environment(**env), clear=True),
        redirect_stderr(io.StringIO()) as said,
    ):
        yield said


def succeeds(place, *addresses, folder=None, sha256="", **env):
    """Have the file; returns what was said meanwhile."""
    with told(**env) as said:
        digest = fetch.have(place, addresses, folder, sha256)
    assert digest == sha256_of(place)
    return said.getvalue()


def fails(place, *addresses, folder=None, sha256="", **env):
    """Have the program ended; returns what was said until then."""
    with told(**env) as said, pytest.raises(SystemExit) as end:
        fetch.have(place, addresses, folder, sha256)
    return f"{said.getvalue()}{end.value.code}\n"


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def write_archives(folder, seed=1):
    """One file of every kind, with contents that do not compress."""
    folder.mkdir()
    rng = random.Random(seed)
    texts = {f"{name}.txt": rng.randbytes(6000) for name in ("one", "two", "three")}
    for name, mode in (("a.tgz", "w:gz"), ("b.tar.gz", "w:gz"), ("e.tar", "w")):
        with tarfile.open(folder / name, mode) as archive:
            for member, text in texts.items():
                info = tarfile.TarInfo(member)
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text))
    (folder / "c.gz").write_bytes(gzip.compress(texts["one.txt"]))
    with zipfile.ZipFile(folder / "d.zip", "w") as archive:
        for member, text in texts.items():
            archive.writestr(member, text)
        archive.comment = b"a comment"
    (folder / "f.txt").write_bytes(b"A plain text.\n" * 1000)
    return folder


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    return write_archives(tmp_path_factory.mktemp("served") / "the originals")


@pytest.fixture
def here(tmp_path):
    """Where to fetch to: a folder that does not exist yet, with a name that asks for trouble."""
    return tmp_path / "downloads #1, ü" / "of today"


def sha256_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def preparing(work, *servers):
    """The stage prepare of IWSLT14 as far as its archive is fetched, killed after the block."""
    words = [sys.executable, "-c", PREPARE, str(ROOT / "examples"), "--work", str(work)]
    words += [word for server in servers for word in ("--mirror", server.url)]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    with subprocess.Popen(words, env=environment(), **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


# What works.


def test_every_kind_is_fetched_once_and_recorded(originals, here):
    with serve(originals) as server:
        for name in NAMES:
            address = f"{server.url}/{name}"
            said = succeeds(here / name, address)
            assert said == f"fetching {name} from {address}\n{here / name} is complete\n"
            assert (here / name).read_bytes() == (originals / name).read_bytes()
        for name in NAMES:
            assert succeeds(here / name, f"{server.url}/{name}") == f"{name} is here already\n"
        assert [path for path, _ in server.requests] == NAMES
    assert files(here) == ["SHA256SUMS", *NAMES]
    checked = subprocess.run(
        ["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=here, capture_output=True, text=True
    )
    assert checked.returncode == 0
    assert checked.stdout == "".join(f"{name}: OK\n" for name in NAMES)


def test_lines_of_other_files_stay_in_sha256sums(originals, here):
    here.mkdir(parents=True)
    (here / "SHA256SUMS").write_text(f"{'0' * 64} *other.gz\n{'1' * 64}  a.tgz.old")
    with serve(originals) as server:
        succeeds(here / "a.tgz", f"{server.url}/a.tgz")
    lines = (here / "SHA256SUMS").read_text().split("\n")
    mine = f"{sha256_of(originals / 'a.tgz')}  a.tgz"
    assert lines == [mine, f"{'1' * 64}  a.tgz.old", f"{'0' * 64} *other.gz", ""]


def test_a_file_put_there_by_hand_is_checked_and_recorded(originals, here):
    here.mkdir(parents=True)
    shutil.copy(originals / "d.zip", here)
    (here / "c.gz").write_bytes((originals / "c.gz").read_bytes()[:-1])
    with serve(originals) as server:
        said = succeeds(here / "d.zip", f"{server.url}/d.zip")
        assert said == "d.zip is here already\n"
        assert (here / "SHA256SUMS").read_text() == f"{sha256_of(originals / 'd.zip')}  d.zip\n"
        said = fails(here / "c.gz", f"{server.url}/c.gz")
        assert f"{here}/c.gz is not a whole .gz file" in said
        assert said.endswith("remove it to fetch it again\n")
        assert not server.requests


def test_another_file_in_the_folder_is_not_passed_over(originals, here, tmp_path):
    others = write_archives(tmp_path / "others", seed=2)
    succeeds(here / "c.gz", "http://nowhere.invalid/c.gz", folder=originals)
    said = fails(here / "c.gz", "http://nowhere.invalid/c.gz", folder=others)
    assert (
        f"{others}/c.gz is another file: to take that one, remove the first, and its line" in said
    )
    assert sha256_of(here / "c.gz") == sha256_of(originals / "c.gz")


def test_a_changed_file_is_reported(originals, here):
    with serve(originals) as server:
        address = f"{server.url}/f.txt"
        succeeds(here / "f.txt", address)
        (here / "f.txt").write_bytes(b"Another text.\n" * 1000)
        said = fails(here / "f.txt", address)
        assert said.count("\n") == 1
        assert f"{here}/f.txt has the SHA-256 {sha256_of(here / 'f.txt')}, but" in said
        assert (
            f"says {sha256_of(originals / 'f.txt')} (if you mean this file, remove its line" in said
        )
        assert (here / "f.txt").read_bytes() == b"Another text.\n" * 1000

        (here / "f.txt").unlink()
        succeeds(here / "f.txt", address)
    assert sha256_of(here / "f.txt") == sha256_of(originals / "f.txt")


def test_a_file_fetched_again_must_be_the_one_recorded(originals, here, tmp_path):
    others = write_archives(tmp_path / "others", seed=2)
    with serve(originals) as server, serve(others) as changed:
        succeeds(here / "a.tgz", f"{server.url}/a.tgz")
        (here / "a.tgz").unlink()
        said = fails(here / "a.tgz", f"{changed.url}/a.tgz")
        assert f"{sha256_of(others / 'a.tgz')}, but benchmark.yaml or SHA256SUMS says" in said
        # What is asked for is the last word.
        wanted = sha256_of(others / "a.tgz")
        succeeds(here / "a.tgz", f"{changed.url}/a.tgz", sha256=wanted.upper())
        assert (here / "SHA256SUMS").read_text() == f"{wanted}  a.tgz\n"
        said = fails(here / "a.tgz", server.url, sha256=sha256_of(originals / "a.tgz"))
        assert "remove it to fetch it again" in said


def test_a_file_in_a_read_only_folder(originals, here):
    with serve(originals) as server:
        succeeds(here / "a.tgz", f"{server.url}/a.tgz")
        written = here.stat().st_mtime_ns  # root may write anywhere: see that it does not
        here.chmod(0o555)
        try:
            assert succeeds(here / "a.tgz", server.url) == "a.tgz is here already\n"
        finally:
            here.chmod(0o755)
    assert here.stat().st_mtime_ns == written


def test_an_address_with_brackets_that_moved(originals, here, tmp_path):
    shutil.copy(originals / "c.gz", tmp_path / "set[1-3]{x}.gz")
    with serve(tmp_path, **{"*": "redirect"}) as server:
        succeeds(here / "c.gz", f"{server.url}/set[1-3]{{x}}.gz")
        assert [path for path, _ in server.requests] == ["set[1-3]{x}.gz"] * 2
    assert (here / "c.gz").read_bytes() == (originals / "c.gz").read_bytes()


def test_proxy(originals, here):
    with serve(originals) as server:
        succeeds(here / "a.tgz", "http://mirror.invalid/a.tgz", http_proxy=server.url)
        assert server.ranges("a.tgz") == [None]


# Integrity.


@pytest.mark.parametrize("name", ["a.tgz", "b.tar.gz", "c.gz", "d.zip"])
def test_damage_is_seen_and_the_next_address_tried(originals, here, name):
    with serve(originals, **{name: "corrupt"}) as bad, serve(originals) as good:
        said = fails(here / name, f"{bad.url}/{name}")
        assert f"  {bad.url}/{name}: what came is not a whole .{name.split('.')[-1]} file" in said
        assert files(here) == []
        said = succeeds(here / name, f"{bad.url}/{name}", f"{good.url}/{name}")
        assert "that failed: what came is not a whole" in said
        assert len(bad.requests) == 2
    assert (here / name).read_bytes() == (originals / name).read_bytes()


def test_a_damaged_header_of_a_tar_is_seen(originals, here, tmp_path):
    """Python's tarfile takes it for the end of the archive."""
    content = (originals / "e.tar").read_bytes()
    second = content.index(b"two.txt")
    (tmp_path / "e.tar").write_bytes(content[:second] + b"x" + content[second + 1 :])
    with serve(tmp_path) as server:
        said = fails(here / "e.tar", f"{server.url}/e.tar")
    assert f"what came is not a whole .tar file (damaged at byte {second})" in said


@pytest.mark.parametrize("name", NAMES)
def test_a_web_page_is_not_the_file(originals, here, name):
    with serve(originals, **{"*": "page"}) as server:
        said = fails(here / name, f"{server.url}/{name}")
    assert f"{server.url}/{name}: what came is a web page instead of the file\n" in said
    assert files(here) == []


@pytest.mark.parametrize("name", ["a.tgz", "c.gz", "f.txt"])
def test_an_empty_file(here, tmp_path, name):
    (tmp_path / name).touch()
    with serve(tmp_path) as server:
        said = fails(here / name, f"{server.url}/{name}")
    assert f"{server.url}/{name}: what came is empty\n" in said


def test_sha256_chooses_among_the_addresses(originals, here, tmp_path):
    others = write_archives(tmp_path / "others", seed=2)
    wanted, other = sha256_of(originals / "e.tar"), sha256_of(others / "e.tar")
    with serve(others) as bad, serve(originals) as good:
        said = fails(here / "e.tar", f"{bad.url}/e.tar", sha256=wanted)
        assert f"has the SHA-256 {other}, but benchmark.yaml or SHA256SUMS says {wanted}" in said
        assert files(here) == []
        addresses = f"{bad.url}/e.tar", f"{good.url}/e.tar"
        succeeds(here / "e.tar", *addresses, sha256=wanted)
    assert sha256_of(here / "e.tar") == wanted


# Mirrors that are down, or as good as.


def test_all_addresses_down(originals, here):
    with serve(originals, **{"a.tgz": "missing"}) as server, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        refused = f"http://127.0.0.1:{port}/a.tgz"  # not listening yet
        said = fails(here / "a.tgz", f"{server.url}/a.tgz", refused)
        last = said[said.index("a.tgz could not be fetched:\n") :].split("\n")
        assert last[1].startswith(f"  {server.url}/a.tgz: ")
        assert "404" in last[1]
        assert last[2].startswith(f"  {refused}: ")
        assert "connect" in last[2]
        assert "fetch the file by hand and name its folder with --from." in last[3]
        assert files(here) == []

        silent.listen()  # accepts, and never says a word of TLS
        addresses = f"https://127.0.0.1:{port}/c.gz", f"{server.url}/c.gz"
        said = succeeds(here / "c.gz", *addresses, FETCH_CONNECT_SECONDS="1")
        assert "that failed: " in said


@pytest.mark.slow
def test_an_address_that_hangs_or_trickles_is_given_up(originals, here):
    behaviour = {"a.tgz": "hang", "d.zip": "trickle"}
    with serve(originals, **behaviour) as slow, serve(originals) as good:
        for name in behaviour:
            addresses = f"{slow.url}/{name}", f"{good.url}/{name}"
            said = succeeds(here / name, *addresses, FETCH_STALL_SECONDS="2")
            assert "that failed: " in said
            assert len(slow.ranges(name)) == 1
            assert (here / name).read_bytes() == (originals / name).read_bytes()
        half = int(good.ranges("d.zip")[0].removeprefix("bytes=").removesuffix("-"))
        assert half >= (originals / "d.zip").stat().st_size // 2  # went on from where it was left
        assert good.ranges("a.tgz") == [None]


# Going on.


@pytest.mark.parametrize("name", ["a.tgz", "c.gz", "d.zip"])
def test_a_broken_transfer_is_resumed_at_once(originals, here, name):
    with serve(originals, **{name: "truncated-once"}) as server:
        succeeds(here / name, f"{server.url}/{name}")
        half = (originals / name).stat().st_size // 2
        assert server.ranges(name) == [None, f"bytes={half}-"]
    assert (here / name).read_bytes() == (originals / name).read_bytes()


def test_a_broken_transfer_is_resumed_by_the_next_run(originals, here):
    with serve(originals, **{"a.tgz": "truncated"}) as server:
        said = fails(here / "a.tgz", f"{server.url}/a.tgz")
        assert "go on from what came so far" in said
        half = (originals / "a.tgz").stat().st_size // 2
        assert files(here) == ["a.tgz.part"]
        assert (here / "a.tgz.part").stat().st_size == half
        tried = len(server.requests)
        server.behaviour.clear()
        succeeds(here / "a.tgz", f"{server.url}/a.tgz")
        assert server.ranges("a.tgz")[tried:] == [f"bytes={half}-"]
    assert (here / "a.tgz").read_bytes() == (originals / "a.tgz").read_bytes()
    assert files(here) == ["SHA256SUMS", "a.tgz"]


def test_what_has_no_checksum_is_not_resumed(originals, here):
    with serve(originals, **{"e.tar": "truncated"}) as bad, serve(originals) as good:
        fails(here / "e.tar", f"{bad.url}/e.tar")
        succeeds(here / "e.tar", f"{good.url}/e.tar")
        assert good.ranges("e.tar") == [None]
        (here / "e.tar").unlink()
        (here / "SHA256SUMS").unlink()
        wanted = sha256_of(originals / "e.tar")
        fails(here / "e.tar", f"{bad.url}/e.tar", sha256=wanted)
        succeeds(here / "e.tar", f"{good.url}/e.tar", sha256=wanted)
        half = (originals / "e.tar").stat().st_size // 2
        assert good.ranges("e.tar") == [None, f"bytes={half}-"]


def begun(content):
    """What an earlier run may have left, and the requests it leads to."""
    size, half = len(content), len(content) // 2
    return {
        "other content": (b"?" * half, [f"bytes={half}-", None]),
        "too long": (content + b"more", [f"bytes={size + 4}-", None]),
        "complete": (content, [f"bytes={size}-"]),
        "empty": (b"", [None]),
    }


@pytest.mark.parametrize("name", ["a.tgz", "c.gz", "d.zip"])
@pytest.mark.parametrize("left", begun(b""))
def test_what_an_earlier_run_left(originals, here, name, left):
    content = (originals / name).read_bytes()
    part, requests = begun(content)[left]
    here.mkdir(parents=True)
    (here / f"{name}.part").write_bytes(part)
    with serve(originals) as server:
        succeeds(here / name, f"{server.url}/{name}")
        assert server.ranges(name) == requests
    assert (here / name).read_bytes() == content
    assert files(here) == ["SHA256SUMS", name]


def test_a_server_that_cannot_resume(originals, here):
    content = (originals / "a.tgz").read_bytes()
    here.mkdir(parents=True)
    (here / "a.tgz.part").write_bytes(content[:5000])
    with serve(originals, **{"a.tgz": "no-range"}) as server:
        succeeds(here / "a.tgz", f"{server.url}/a.tgz")
        assert server.ranges("a.tgz") == ["bytes=5000-", None]
    assert (here / "a.tgz").read_bytes() == content


# The stage prepare keeps its runs apart: whoever fetches into a work folder holds its lock.


@pytest.fixture
def archive(originals, tmp_path):
    """A folder to serve, with what the recipe of IWSLT14 asks for."""
    (tmp_path / "served").mkdir()
    return shutil.copy(originals / "a.tgz", tmp_path / "served" / "de-en.tgz")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_and_run_again(archive, tmp_path, number):
    downloads = tmp_path / "downloads"
    part = downloads / "de-en.tgz.part"
    with serve(archive.parent, **{archive.name: "trickle"}) as server:
        with preparing(tmp_path, server) as process:
            wait_for(lambda: part.exists() and part.stat().st_size)
            process.send_signal(number)
            process.wait()
        assert files(downloads) == ["de-en.tgz.part"]
        server.behaviour.clear()
        with preparing(tmp_path, server) as again:
            # After a SIGKILL, curl is still at work and may not write into the file that counts.
            waits = "waiting for another run" in again.stderr.readline()
            assert waits == (number == signal.SIGKILL)
            server.release.set()
            assert again.communicate()[1].endswith("de-en.tgz is complete\n")
        first, second = server.ranges(archive.name)
        assert first is None
        assert int(second.removeprefix("bytes=").removesuffix("-")) > 0
    assert (downloads / archive.name).read_bytes() == archive.read_bytes()
    assert files(downloads) == ["SHA256SUMS", "de-en.tgz"]


def test_a_signal_during_a_copy_ends_it_as_others(originals, here, monkeypatch):
    """So that the recipe says how to go on; a large file is copied and read for minutes."""
    end_it = lambda *_: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    monkeypatch.setattr(fetch.shutil, "copyfile", end_it)
    with told(), pytest.raises(SystemExit) as end:
        fetch.have(here / "a.tgz", [], originals)
    assert end.value.code == 128 + signal.SIGTERM


def test_two_at_once(archive, tmp_path):
    downloads = tmp_path / "downloads"
    with serve(archive.parent, **{"*": "hang"}) as server, serve(archive.parent) as good:
        with preparing(tmp_path, server, good) as one:
            wait_for(lambda: server.requests)
            with preparing(tmp_path, server, good) as two:
                assert "waiting for another run" in two.stderr.readline()
                server.release.set()
                assert one.communicate()[1].endswith("de-en.tgz is complete\n")
                assert two.communicate()[1] == "de-en.tgz is here already\n"
        assert (one.returncode, two.returncode) == (0, 0)
        assert (len(server.requests), len(good.requests)) == (1, 1)
    assert (downloads / archive.name).read_bytes() == archive.read_bytes()
    assert files(downloads) == ["SHA256SUMS", "de-en.tgz"]


# Without a network, or without curl.


def test_from_a_folder(originals, here, tmp_path):
    bin_without_curl = tmp_path / "bin"
    bin_without_curl.mkdir()
    with serve(originals) as server:
        for name in NAMES:
            words = here / name, f"{server.url}/{name}"
            succeeds(*words, folder=originals, PATH=str(bin_without_curl))
            assert (here / name).read_bytes() == (originals / name).read_bytes()
            assert not (here / name).samefile(originals / name)
            assert succeeds(*words, folder=originals) == f"{name} is here already\n"
        assert not server.requests
    assert files(here) == ["SHA256SUMS", *NAMES]


def test_from_a_folder_without_the_file_or_with_a_bad_one(originals, here, tmp_path):
    with serve(originals) as server:
        addresses = f"{server.url}/one/a.tgz", f"{server.url}/two/a.tgz"
        words = here / "a.tgz", *addresses
        wanted = " or ".join(addresses)
        said = fails(*words, folder=tmp_path)
        assert said == f"{tmp_path}/a.tgz is missing: fetch it from {wanted}\n"
        (tmp_path / "a.tgz").write_bytes((originals / "a.tgz").read_bytes()[:-9])
        said = fails(*words, folder=tmp_path)
        assert f"{tmp_path}/a.tgz is not a whole .tgz file" in said
        assert said.endswith(f": fetch it again from {wanted}\n")
        shutil.copy(originals / "a.tgz", tmp_path)
        said = fails(*words, folder=tmp_path, sha256="0" * 64)
        assert f"{tmp_path}/a.tgz has the SHA-256 {sha256_of(originals / 'a.tgz')}, but" in said
        assert files(here) == []
        assert not server.requests


def test_what_has_no_address_is_taken_from_a_folder(originals, here, tmp_path):
    said = fails(here / "a.tgz", folder=tmp_path)
    assert said == f"{tmp_path}/a.tgz is missing: fetch it\n"
    said = fails(here / "a.tgz")
    assert said == "a.tgz has no address to be fetched from: name its folder with --from\n"
    succeeds(here / "a.tgz", folder=originals)
    assert (here / "a.tgz").read_bytes() == (originals / "a.tgz").read_bytes()


def test_without_curl(here, tmp_path):
    bin_without_curl = tmp_path / "bin"
    bin_without_curl.mkdir()
    address = "http://127.0.0.1:1/a.tgz"
    said = fails(here / "a.tgz", address, PATH=str(bin_without_curl))
    assert said.startswith("the command curl is missing: install it (apt, dnf,")
    assert f"fetch a.tgz from {address} and name its folder with --from\n" in said
