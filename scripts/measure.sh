#!/bin/sh
# Maps of one split without selection, then the time to first token through the server, needles, and loss on far tokens.
#
#   measure.sh PYRIDGEFILL MODEL FOLDER RESULTS SPLIT
#
# FOLDER takes the maps, RESULTS the lines; what they have is not made again. For less than a benchmark needs, set
# TOKENS (of the calibration text), REPEATS (pairs of timed prompts), NEEDLES and TEXTS (0: no loss).
set -eu

pyridgefill=$1 model=$2 folder=$3 results=$4 split=$5
tokens=${TOKENS:-48000} repeats=${REPEATS:-5} needles=${NEEDLES:-20} texts=${TEXTS:-8}

maps=$folder/$(basename "$model" .gguf).$split.ridgefill.gguf
fill="--split $split --select none --tail 256 --sink 4 --json $results"

if [ ! -e "$maps" ]; then
    "$pyridgefill" calibrate "$model" -o "$maps" --splits "$split" --tokens "$tokens" --no-heads --no-trials
fi

# shellcheck disable=SC2086
main() {
    "$pyridgefill" bench "$model" "$maps" --server --ctx 4096 --repeats "$repeats" $fill
    "$pyridgefill" eval needle "$model" "$maps" --ctx 2048 --kinds multi-key --needles "$needles" --keys 4 \
        --baselines identity $fill
    if [ "$texts" != 0 ]; then
        "$pyridgefill" eval far-loss "$model" "$maps" --ctx 2048 --texts "$texts" --baselines identity $fill
    fi
}
main
