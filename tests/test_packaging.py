"""The wheel and the sdist, installed into environments that have nothing else."""

import email
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow

TRACKED = subprocess.run(
    ["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True
).stdout.splitlines()
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{0}(sys.argv[1])"


def call(*command, cwd=None):
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """Built from the files that git knows: what lies around in a checkout stays out."""
    checkout = tmp_path_factory.mktemp("checkout")
    for name in TRACKED:
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    call(sys.executable, "-c", BUILD.format("sdist"), checkout / "dist", cwd=checkout)
    (path,) = (checkout / "dist").iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """Built from the sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    call(sys.executable, "-c", BUILD.format("wheel"), folder / "dist", cwd=source)
    (path,) = (folder / "dist").iterdir()
    return path


def test_the_sdist_is_the_whole_project(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(TRACKED) - names <= {".gitignore", ".pre-commit-config.yaml"}


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {name for name in TRACKED if name.startswith("macaron_fairseq/")}


def test_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == "<3.14,>=3.10"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload(decode=True).decode() == (ROOT / "README.md").read_text()


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_one_package_gives_fairseq(wheel, python, machine):
    """Two would write the same files; none, and nothing runs."""
    requirements = pytest.importorskip("packaging.requirements")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist")
    here = {"python_version": python, "sys_platform": "linux", "platform_machine": machine}
    found = [
        requirement.name
        for requirement in map(requirements.Requirement, lines)
        if "fairseq" in requirement.name
        and (requirement.marker is None or requirement.marker.evaluate(here))
    ]
    expected = "ve-fairseq" if (python, machine) == ("3.11", "x86_64") else "fairseq-fixed"
    assert found == [expected]


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_installed_into_an_empty_environment(kind, request, tmp_path):
    """Its command starts without fairseq and PyTorch."""
    archive = request.getfixturevalue(kind)
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    install = ["install", "--no-deps", "--no-index", "--no-build-isolation"]
    if kind == "sdist":  # what builds it has to be there, too
        place = Path(pytest.importorskip("setuptools").__file__).parent.parent
        pass
    call(sys.executable, "-m", "pip", "--python", python, *install, archive)
    command = python.with_name("macaron-fairseq")
    assert call(command, "--version", cwd=tmp_path).split()[-1] in archive.name
    place = Path(call(command, "user-dir", cwd=tmp_path).strip())
    assert place.is_relative_to(tmp_path) and (place / "py.typed").is_file()
