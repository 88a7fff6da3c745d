"""The wheel and the sdist, installed into environments that have nothing else."""

import email
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from helpers.paths import ROOT
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

BUILD = "import sys; from setuptools import build_meta; build_meta.build_{0}(sys.argv[1])"


def call(*command, cwd=None, **variables):
    """Run it without the checkout on Python's path; what it printed."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**env, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def tracked():
    """What git knows, as names below the checkout."""
    try:
        return call("git", "-C", ROOT, "ls-files").splitlines()
    except (OSError, AssertionError):
        pytest.skip("not a git checkout")


@pytest.fixture(scope="module")
def sdist(tracked, tmp_path_factory):
    """Built from the files that git knows: what lies around in a checkout stays out."""
    checkout = tmp_path_factory.mktemp("checkout")
    for name in tracked:
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    call(sys.executable, "-c", BUILD.format("sdist"), checkout / "dist", cwd=checkout)
    (path,) = (checkout / "dist").iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(sdist):
    """Built from the sdist, as `python -m build` does."""
    with tarfile.open(sdist) as archive:
        archive.extractall(sdist.parent, filter="data")
    source = sdist.parent / sdist.name.removesuffix(".tar.gz")
    call(sys.executable, "-c", BUILD.format("wheel"), sdist.parent, cwd=source)
    (path,) = sdist.parent.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_sdist_is_the_whole_project(sdist, tracked):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(tracked) - names <= {".gitignore"}


def test_the_wheel_holds_the_package_and_nothing_else(wheel, tracked):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {name for name in tracked if name.startswith("macaron_fairseq/")}


def test_metadata(metadata):
    assert metadata["License-Expression"] == "MIT AND Unicode-3.0"
    assert len(metadata.get_all("License-File")) == 2
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload(decode=True).decode() == (ROOT / "README.md").read_text()


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_exactly_one_package_gives_fairseq(metadata, python, machine):
    """Two would write the same files."""
    here = {"python_version": python, "sys_platform": "linux", "platform_machine": machine}
    lines = [x for x in map(Requirement, metadata.get_all("Requires-Dist")) if "fairseq" in x.name]
    expected = "ve-fairseq" if (python, machine) == ("3.11", "x86_64") else "fairseq-fixed"
    assert [line.name for line in lines if line.marker.evaluate(here)] == [expected]


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_installed_into_an_empty_environment(kind, request, tmp_path):
    """Its command starts without fairseq and PyTorch."""
    archive = request.getfixturevalue(kind)
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    # Without a network pip cannot fetch setuptools to build the sdist: it may use ours, here alone.
    ours = {"PYTHONPATH": sysconfig.get_path("purelib")} if kind == "sdist" else {}
    install = ["install", "--no-deps", "--no-index", "--no-build-isolation", archive]
    call(sys.executable, "-m", "pip", "--python", python, *install, **ours)
    command = python.with_name("macaron-fairseq")
    assert call(command, "--version", cwd=tmp_path).split()[-1] in archive.name
    place = Path(call(command, "user-dir", cwd=tmp_path).strip())
    assert place.is_relative_to(tmp_path) and (place / "py.typed").is_file()


def test_the_folder_around_a_clone_imports_the_package(tmp_path):
    """Python would take the clone, which may have its name, for a package without code."""
    (tmp_path / "macaron_fairseq").symlink_to(ROOT)
    asked = "import macaron_fairseq; print(macaron_fairseq.load.__name__)"
    assert call(sys.executable, "-c", asked, cwd=tmp_path) == "load\n"
