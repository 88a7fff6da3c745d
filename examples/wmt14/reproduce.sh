#!/usr/bin/env bash
# WMT14 English-German: Macaron Net and a Transformer of equal size, from the archives to the table.
#
#   needs   GPUs (the paper: 4 for base, 4 to 32 for big) and about 60 GB of disk for a seed (big: 150),
#           mostly checkpoints. Hours: the text work's are in docs/results/speed.md, those on GPUs the
#           project has not measured, and the README estimates them. Others: 12 on 8 P100s for 100,000
#           updates of the base Transformer, of 25,000 tokens (here 32,768), in fp32 (Vaswani et al. 2017)
#   prints  compound-split BLEU, the paper's kind (tokens:moses-normalized-compound-split|...), and
#           BLEU (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp) and chrF of sacreBLEU, on newstest2014
#           and on the 2,737 of its 3,003 sentences that the authors scored
#   paper   base: Transformer 27.3, Macaron 28.9; big: 28.4 and 30.2 (compound-split BLEU, Table 1).
#           sacreBLEU is lower: the same output of Scaling NMT has 29.3 and 28.6
#   ends    after 100,000 updates (big: 50,000); the mean of the last 10 epochs is scored. Both, and
#           fp16, are choices of ours: the released scripts name no end, decode checkpoint_best.pt and
#           train in fp32
#
#   --setting big      the big models
#   --setting v9-37k   News Commentary v9, as in "Attention Is All You Need", and 37,000 merges
set -euo pipefail
unset CDPATH # with which cd may go elsewhere
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec python3 -X utf8 "$here/../recipe.py" "$here/${0##*/}" "$@"
