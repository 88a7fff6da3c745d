#!/usr/bin/env bash
# Makes the Python environment of this project, or brings it up to date. Run it again at any time:
# it does nothing when nothing changed, and picks up after an interruption.
#
#   VENV    the environment to use (default: .venv, which is made here). Another that exists, for
#           example VENV="$VIRTUAL_ENV" or VENV="$CONDA_PREFIX", is added to and never replaced.
#           A relative path is one from this folder, here and below.
#   PYTHON  the interpreter to make it with (default: the first supported one found).
#   TORCH   the PyTorch to install, as pip spells it, for example TORCH='torch==2.9.1'.
#
# A PyTorch >= 2.6 that VENV or PYTHON can import already is used as it is. An environment that
# happens to be active is not used: name it with VENV.
set -euo pipefail

if (($#)); then
    sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p;}' "${BASH_SOURCE[0]}" # it takes no words
    [[ $1 == -h || $1 == --help ]]
    exit
fi

unset CDPATH # with which cd may go elsewhere
cd "$(dirname "${BASH_SOURCE[0]}")"
VENV=${VENV:-.venv}
[[ $VENV == /* ]] || VENV=$PWD/$VENV
python=$VENV/bin/python
state=$VENV/.setup-env # our own notes inside the environment
log=$state/log
# Some clusters make "pip install --user" the default, which would miss the environment.
export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# It would make fairseq compile GPU code that no text task uses, with whatever nvcc is there.
unset CUDA_HOME

say() { printf 'setup-env: %s\n' "$*"; }

die() {
    say "$*" >&2
    exit 1
}

trap 'say "interrupted: run it again, it goes on from here" >&2; exit 130' INT

# An interrupted make can leave a pip at work behind it; two at once would spoil the environment.
wait_for_other_run() {
    command -v flock >/dev/null || return 0
    if [[ -w setup-env.sh ]]; then exec 9>>setup-env.sh; else exec 9<setup-env.sh; fi
    local status=0
    flock -n 9 2>/dev/null || status=$?
    ((status == 1)) || return 0 # else it is ours, or a network disk without locks
    say "waiting for another run that is still at work here"
    flock 9
}

is_supported() {
    "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

version_of() { "$1" -c 'import platform; print(platform.python_version())'; }

minor_version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

choose_python() {
    local name names=(python3.11 python3.12 python3.13 python3.10 python3)
    [[ -z ${PYTHON:-} ]] || names=("$PYTHON")
    for name in "${names[@]}"; do
        is_supported "$name" && command -v "$name" && return
    done
    die "${PYTHON:-the python3 on the PATH} is not a Python 3.10 to 3.13: install one, or set" \
        "PYTHON to where it is, as in PYTHON=/path/to/python3.11."
}

# Where an environment is active, the interpreter that it was made with: a new environment sees that
# one's packages, whether it has a PyTorch or not. Python 3.10 does not tell it by itself.
original_of() {
    "$1" - <<'EOF'
import os, sys
own = os.path.join(sys.base_prefix, "bin", "python%d.%d" % sys.version_info[:2])
print(own if os.access(own, os.X_OK) else getattr(sys, "_base_executable", sys.executable))
EOF
}

# The installed PyTorch's version where it is new enough, else nothing. It is not imported: next to
# a half-installed numpy that fails, and numpy is mended only after this is asked.
torch_version() {
    "$1" - 2>/dev/null <<'EOF' || true
import re
from importlib.metadata import version
found = version("torch")
is_early = re.match(r"2\.6(\.0)?(a|b|rc|\.dev)", found)  # which pip takes for less than 2.6
if tuple(map(int, re.findall(r"\d+", found)[:2])) >= (2, 6) and not is_early:
    print(found)
EOF
}

has_torch() { [[ -n $(torch_version "$1") ]] && "$1" -c 'import torch' 2>/dev/null; }

run_pip() {
    # Python compiles a module when it is first imported, and few of them are.
    PIP_COMPILE=0 "$python" -m pip "$@" >>"$log" 2>&1 && return
    tail -n 25 "$log" >&2
    die "pip failed; its last lines are above, the rest is in $log. Mend that and run again."
}

# Ours to rebuild only if we made it: "ours" is written before the environment, "made" after it.
is_complete() {
    [[ $(cat "$state/made" 2>/dev/null)/pyvenv.cfg -ef $VENV/pyvenv.cfg ]] && # else it was moved
        is_supported "$python" &&
        [[ -z ${PYTHON:-} || $(minor_version_of "$python") == $(minor_version_of "$PYTHON") ]]
}

contents() { find "$VENV/" -mindepth 1 -maxdepth 1 ! -name .setup-env "$@" 2>/dev/null || true; }

make_environment() {
    local base flags=()
    if [[ -e $VENV/bin && ! -e $state/ours ]]; then
        if ! is_supported "$python" || ! "$python" -m pip --version >/dev/null 2>&1; then
            die "$VENV has no Python 3.10 to 3.13 with pip: remove it, or set VENV to another."
        fi
        mkdir -p "$state"
        return
    fi
    is_complete && return
    base=$(choose_python)
    base=$(original_of "$base")
    [[ -e $state/ours || -z $(contents) ]] ||
        die "$VENV holds other things and is left alone: set VENV to another folder."
    [[ -n ${TORCH:-} ]] || ! has_torch "$base" || flags=(--system-site-packages)
    # As in a home folder that machines share: another one may be at work in it.
    [[ ! -e $state/made ]] || is_supported "$python" ||
        die "the Python in $VENV is gone or does not start on this machine: load the module that it" \
            "is from, set VENV to another folder, or remove $VENV to make it anew."
    say "1/4 virtual environment in $VENV, Python $(version_of "$base"): a few seconds"
    mkdir -p "$state"
    touch "$state/ours"
    contents -exec rm -rf {} +
    rm -f "$state/made" "$state/stamp" "$state/torch"
    "$base" -m venv ${flags[@]+"${flags[@]}"} "$VENV" >"$log" 2>&1 || {
        tail -n 25 "$log" >&2
        die "Python's venv module failed, see above; on Debian and Ubuntu it is a package of its" \
            "own: apt install python$(minor_version_of "$base")-venv."
    }
    printf '%s\n' "$VENV" >"$state/made"
}

# What the environment depends on; the same text as last time means nothing to do.
fingerprint() {
    "$python" - "${TORCH:-$(cat "$state/torch" 2>/dev/null)}" <<'EOF'
import hashlib, pathlib, sys
text = b"".join(pathlib.Path(name).read_bytes() for name in ("pyproject.toml", "setup-env.sh"))
text += repr((sys.version, sys.argv[1], pathlib.Path.cwd())).encode()
print(hashlib.sha256(text).hexdigest())
EOF
}

# A package whose installation was cut short looks whole to pip, and may lack its commands. What
# tells them apart: as its last step pip rewrites RECORD, and only then does that name INSTALLER.
forget_half_installed() {
    [[ -e $state/ours ]] || return 0
    "$python" - <<'EOF'
import pathlib, shutil, sysconfig
place = pathlib.Path(sysconfig.get_path("purelib"))
for info in place.glob("*.dist-info"):
    record = info / "RECORD"
    if not record.exists() or "INSTALLER" not in record.read_text("utf-8"):
        shutil.rmtree(info)
EOF
}

is_installed() { "$python" -m pip show --quiet "$1" 2>/dev/null; }

has_compiler() {
    local header='import sysconfig; print(sysconfig.get_path("include") + "/Python.h")'
    local c=${CC:-cc} cxx=${CXX:-c++}
    command -v "${c%% *}" && command -v "${cxx%% *}" && [[ -e $("$python" -c "$header") ]]
} >/dev/null

# Said now rather than after a long download.
check_compiler() {
    local version
    has_compiler && return
    is_installed fairseq-fixed || is_installed ve-fairseq && return
    "$python" -m pip download --no-deps --only-binary :all: --dest "$state/ready" \
        -r "$state/fairseq.txt" >>"$log" 2>&1 && return
    version=$(minor_version_of "$python")
    tail -n 3 "$log" >&2
    die "pip found no compiled fairseq, see above. If pip reached its index, fairseq must be compiled for Python $version, which needs a C++ compiler and Python's" \
        "headers (on Debian and Ubuntu: apt install g++ python$version-dev); on 64-bit x86 Linux" \
        "PYTHON=python3.11 and PYTHON=python3.12 need neither."
}

# A user's own fairseq has another name for pip, which would lay ours over its files without a word.
check_fairseq() {
    [[ ! -e $state/ours ]] || return 0
    ! is_installed fairseq || die "$VENV has the package fairseq, and what this needs of fairseq" \
        "would replace its files: set VENV to a new environment, or first pip uninstall fairseq."
}

# pip cannot ask for "the newest CPU-only build", so the newest is looked up and asked for by name.
newest_cpu_build() {
    "$python" -m pip index versions torch 2>>"$log" | awk -F '[:, ]+' '/^Available/ {
        for (i = 2; i <= NF; i++) if ($i ~ /[+]cpu$/) { print $i; exit } }' || true
}

install_torch() {
    local found cpu
    found=$(torch_version "$python")
    if [[ -n ${TORCH:-} ]]; then
        say "2/4 PyTorch as asked, $TORCH"
        # To pip a CPU build is as good as the GPU build of its version.
        [[ ! -e $state/ours || $(cat "$state/torch" 2>/dev/null) == "$TORCH" ]] ||
            run_pip uninstall -y torch
        run_pip install "$TORCH" 'torch>=2.6'
        printf '%s\n' "$TORCH" >"$state/torch" # which a later call need not name again
    elif [[ -n $found ]]; then
        say "2/4 PyTorch $found is there already and is left as it is"
    elif nvidia-smi >/dev/null 2>&1; then
        say "2/4 PyTorch for this machine's GPU: several gigabytes, minutes"
        run_pip install 'torch>=2.6'
    elif cpu=$(newest_cpu_build) && [[ -n $cpu ]]; then
        say "2/4 PyTorch $cpu, the CPU-only build: some 200 MB, about a minute"
        run_pip install "torch==$cpu" 'torch>=2.6'
    else
        say "2/4 PyTorch: several minutes"
        if [[ $(uname) == Linux ]]; then
            say "    pip knows no CPU-only build, so this is the GPU build, several gigabytes."
            say "    To avoid it, stop here and run again with PIP_EXTRA_INDEX_URL naming an index"
            say "    of CPU builds, or with TORCH naming one build, as in TORCH=/path/to/torch.whl."
        fi
        run_pip install 'torch>=2.6'
    fi
    # Nothing that follows may swap it for another build.
    printf 'torch==%s\n' "$(torch_version "$python")" >"$state/constraints.txt"
}

install_fairseq() {
    say "3/4 fairseq: 2 to 5 minutes where it must be compiled"
    run_pip install -c "$state/constraints.txt" numpy cython 'setuptools>=77' wheel
    # Without isolation it compiles against the PyTorch above; with it, pip fetches a second one.
    local install=(install --no-build-isolation --no-deps -r "$state/fairseq.txt")
    run_pip "${install[@]}"
    # The environment had the other package already. Both own the same files, so both go first.
    if is_installed ve-fairseq && is_installed fairseq-fixed; then
        run_pip uninstall -y ve-fairseq fairseq-fixed
        run_pip "${install[@]}"
    fi
}

install_project() {
    say "4/4 this project, its tools and the rest: about a minute"
    run_pip install -c "$state/constraints.txt" -e '.[docs,quickstart,test]'
}

report() {
    "$python" - <<'EOF' 2>>"$log" || die "fairseq or PyTorch fails to import; see the end of $log."
import platform
import fairseq, torch
where = "with a GPU" if torch.cuda.is_available() else "on the CPU"
print(f"setup-env: ready, Python {platform.python_version()}, PyTorch {torch.__version__}, {where}")
EOF
    local activate=''
    # An active environment needs none, and conda's have none.
    [[ ! -e $VENV/bin/activate || $(command -v python) == "$python" ]] ||
        activate=". $(printf %q "${VENV#"$PWD"/}")/bin/activate && "
    say "next, a first translation: ${activate}macaron-fairseq demo"
}

wait_for_other_run
make_environment
[[ $(cat "$state/stamp" 2>/dev/null) != "$(fingerprint)" ]] || exit 0
rm -f "$state/stamp"
: >"$log"
# fairseq, as pip spells it: pip picks the line that is for this Python.
sed -n "s/^ *'\(.*fairseq.*==.*\)',$/\1/p" pyproject.toml >"$state/fairseq.txt"
forget_half_installed
check_fairseq
check_compiler
install_torch
install_fairseq
install_project
report
fingerprint >"$state/stamp"
