#!/bin/sh
# The tables of the quality lab: needles and loss on far tokens with all baselines, where exact and filled memory
# differ, and time to first token, for the settings that a maps file recommends and for a higher split.
#
#   bench_lab.sh PYRIDGEFILL MODEL MAPS HIGHER STATISTICS RESULTS
#
# MAPS recommends its settings, HIGHER is a maps file of a higher split, STATISTICS are sums for the baseline mean.
set -eu

pyridgefill=$1 model=$2 maps=$3 higher=$4 statistics=$5 results=$6

options="--tail 256 --sink 4 --json $results"
baselines="--baseline identity --baseline mean --baseline zero --baseline drop --statistics $statistics"
needles="--kinds multi-key --needles 20 --keys 5"

for ctx in 2048 1024; do
    # shellcheck disable=SC2086
    for task in "needle $needles" "far-loss --texts 6"; do
        set -- $task
        name=$1
        shift
        "$pyridgefill" eval $name "$model" "$maps" --ctx $ctx "$@" $baselines $options
        "$pyridgefill" eval $name "$model" "$higher" --ctx $ctx "$@" $baselines --baseline neutral-filler \
            --select none $options
    done
done
# with the tail that the maps recommend
# shellcheck disable=SC2086
"$pyridgefill" eval needle "$model" "$maps" --ctx 4096 $needles --json "$results"
"$pyridgefill" eval far-loss "$model" "$maps" --ctx 4096 --texts 8 --baseline mean --statistics "$statistics" \
    --json "$results"
# shellcheck disable=SC2086
"$pyridgefill" eval splice "$model" "$maps" --ctx 1024 --texts 6 --needles 6 --groups 3 $options
"$pyridgefill" bench "$model" "$maps" --ctx 4096 --repeats 3 --json "$results"
