# The project and its environment, for a CPU or NVIDIA's GPUs; it runs the quickstart.
#
#   docker build -t macaron-fairseq .
#   docker run --rm macaron-fairseq macaron-fairseq demo
#   mkdir -p runs; docker run --rm --user "$(id -u):$(id -g)" -e HOME=/tmp \
#     -v "$PWD/runs:/macaron_fairseq/runs" macaron-fairseq      # the quickstart; its files are yours
#
# For GPUs, with NVIDIA's container toolkit:
#   docker build --build-arg TORCH=torch -t macaron-fairseq:cuda .
#   docker run --rm --gpus all macaron-fairseq:cuda
#
# Arguments, see also the top of setup-env.sh:
#   PYTHON                3.11 (the default) and 3.12 compile nothing on 64-bit x86
#   TORCH                 the PyTorch to install, as pip spells it. pip's usual one for Linux on x86 is
#                         for GPUs, and works on a CPU too. Empty: the newest build for CPUs, if pip
#                         knows one
#   PIP_EXTRA_INDEX_URL   an index that has builds for CPUs, some gigabytes smaller; PyTorch's
#                         installation page names it
ARG PYTHON=3.11
FROM python:${PYTHON}-slim

# Of a release of Debian the versions are those of its day; older ones vanish from its archive.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends curl g++ make \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /macaron_fairseq
ENV VENV=/opt/venv PATH=/opt/venv/bin:$PATH PYTHONUTF8=1

# The environment first, from what it depends on: a change in the code does not make it anew.
COPY LICENSE README.md pyproject.toml setup.py setup-env.sh ./
COPY macaron_fairseq/__init__.py macaron_fairseq/version.py macaron_fairseq/
COPY macaron_fairseq/demo/LICENSE.unicode macaron_fairseq/demo/
ARG TORCH=""
ARG PIP_EXTRA_INDEX_URL=""
RUN PIP_NO_CACHE_DIR=1 ./setup-env.sh

COPY . .
CMD ["examples/quickstart/run.sh"]
