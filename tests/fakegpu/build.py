"""Compile the shim against the PyTorch of this Python, half a minute; no PyTorch is imported."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.cpp")
MODULE = "fakegpu_shim"


def reason_against() -> str | None:
    """Why it cannot be compiled here, or None."""
    if sys.platform != "linux":
        return "the shim is for Linux"
    if not shutil.which("g++"):
        return "there is no g++ to compile the shim"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return "Python's headers are not installed"
    if not (torch_folder() / "include" / "ATen").is_dir():
        return "PyTorch has no headers here"
    version = (torch_folder() / "version.py").read_text("utf-8")
    if "cuda: Optional[str] = None" not in version:
        return "this PyTorch is built for GPUs"
    return None


def torch_folder() -> Path:
    """Where PyTorch is."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("torch")
    return Path(spec.origin).parent


def build(folder: Path | None = None) -> Path:
    """The compiled shim; it is compiled once for a source and a PyTorch.

    Raises:
        RuntimeError: if it cannot be compiled, with the reason.
    """
    if reason := reason_against():
        raise RuntimeError(reason)
    torch = torch_folder()
    # The library finds PyTorch's own where they were, so another copy of it needs another one.
    made_of = SOURCE.read_bytes() + (torch / "version.py").read_bytes()
    made_of += f"{torch}{sys.version}".encode()
    name = f"fakegpu-{os.getuid()}-{hashlib.sha256(made_of).hexdigest()[:16]}"
    folder = folder or Path(tempfile.gettempdir(), name)
    library = folder / f"{MODULE}.so"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():  # whose library would run here
        raise RuntimeError(f"{folder} belongs to another user")
    if library.is_file():
        return library
    includes = [torch / "include", torch / "include/torch/csrc/api/include"]
    words = [
        *("g++", "-O1", "-std=c++20", "-shared", "-fPIC", "-w"),
        *("-D_GLIBCXX_USE_CXX11_ABI=1", f"-DTORCH_EXTENSION_NAME={MODULE}"),
        *(f"-I{x}" for x in [*includes, sysconfig.get_paths()["include"]]),
        str(SOURCE),
        *(f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}"),
        *("-lc10", "-ltorch_cpu", "-ltorch_python", "-ltorch"),
    ]
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        new = Path(temporary, library.name)
        done = subprocess.run([*words, "-o", str(new)], capture_output=True, text=True, timeout=600)
        if done.returncode:
            lines = [x for x in done.stderr.splitlines() if "error" in x] or [done.stderr.strip()]
            raise RuntimeError(f"this PyTorch does not take the shim: {lines[0]}")
        new.replace(library)
    return library
