#!/bin/sh
# Copies a part of the lines: with PART=2/3 every third one, from the second one on; without PART
# all. Checks that are too long for each commit take their lines through it.
#
#   PART=2/3 tests/part.sh <lines
set -eu
case ${PART:=1/1} in
*[!0-9/]* | */*/* | /* | */ | 0* | */0*) bad=yes ;;
*/*) bad='' ;;
*) bad=yes ;;
esac
if [ "$bad" ] || [ "${PART%/*}" -gt "${PART#*/}" ]; then
    echo "PART=$PART: write a number and how many parts there are, such as PART=2/3" >&2
    exit 2
fi
awk -v part="${PART%/*}" -v parts="${PART#*/}" 'NR % parts == part % parts'
