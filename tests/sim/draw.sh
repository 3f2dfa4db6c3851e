#!/bin/sh
# Draws the scenarios with gnuplot, from the data that `sim scenarios` has written to a folder.
#
#     tests/sim/draw.sh build/sim
set -eu
if ! sh .ci/deps --need 'sh .ci/deps gnuplot' gnuplot; then
    echo "There are no pictures; the figures do not need them."
    exit 0
fi
for data in "$1"/scenario_*.dat; do
    name=${data##*/scenario_}
    name=${name%.dat}
    gnuplot -e "name='$name'; folder='$1'" tests/sim/scenario.gp
    echo "$1/scenario_$name.svg"
done
