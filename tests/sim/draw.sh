#!/bin/sh
# Draws the scenarios with gnuplot, from the data that `sim scenarios` has written to a folder. With
# two arguments, draws one picture from its data. The script of gnuplot has the name of the picture.
#
#     tests/sim/draw.sh build/sim
#     tests/sim/draw.sh build/sim/throttle.dat tests/sim/throttle.svg
set -eu
if ! sh .ci/deps --need 'sh .ci/deps gnuplot' gnuplot; then
    echo "There are no pictures; the figures do not need them."
    exit 0
fi
if [ $# = 2 ]; then
    gnuplot -e "data='$1'; picture='$2'" "${2%.svg}.gp"
    echo "$2"
    exit
fi
for data in "$1"/scenario_*.dat; do
    name=${data##*/scenario_}
    name=${name%.dat}
    gnuplot -e "name='$name'; folder='$1'" tests/sim/scenario.gp
    echo "$1/scenario_$name.svg"
done
