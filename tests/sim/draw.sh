#!/bin/sh
# Draws the scenarios whose data `sim scenarios` has written to a folder, with gnuplot.
#
#     tests/sim/draw.sh build/sim
set -eu
if ! sh .ci/deps gnuplot; then
    echo "No pictures, then; the figures do not need them."
    exit 0
fi
for data in "$1"/scenario_*.dat; do
    name=${data##*/scenario_}
    name=${name%.dat}
    gnuplot -e "name='$name'; folder='$1'" tests/sim/scenario.gp
    echo "$1/scenario_$name.svg"
done
