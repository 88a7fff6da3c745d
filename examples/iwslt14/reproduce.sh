#!/usr/bin/env bash
# IWSLT14 German-English: Macaron Net and a Transformer of equal size, from the archive to the table.
#
#   needs   one GPU, about 20 GB of disk for a seed, mostly checkpoints. Hours: on an H100 about one a model, by the
#           arithmetic of the README; on 2 CPU cores 40 or 78 a model, 50,000 updates at the 2.84 or 5.65 s
#           each of docs/results/speed.md
#   prints  tokenised lowercased BLEU, the paper's metric (tokens:model|nrefs:1|case:lc|...), and BLEU
#           (nrefs:1|case:lc|eff:no|tok:13a|smooth:exp) and chrF of sacreBLEU
#   paper   Transformer 34.4, Macaron 35.4 (tokenised lowercased BLEU, Table 1)
#   ends    after 50,000 updates; the mean of the last 10 epochs is scored. Both, and fp16, are choices
#           of ours: the released script names no end, decodes checkpoint_best.pt and trains in fp32
#
#   --pair de-en (default) or en-de
set -euo pipefail
unset CDPATH # with which cd may go elsewhere
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec python3 -X utf8 "$here/../recipe.py" "$here/${0##*/}" "$@"
