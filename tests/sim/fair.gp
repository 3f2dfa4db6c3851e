# Draws what keys get of a limit that they share, as a part of their exact max-min shares: gnuplot
# -e "data='build/sim/fair.dat'; picture='fair.svg'" fair.gp
# Columns of the data: a name, what the keys get of a fair limit in %, and in the order of arrival.

set terminal svg size 900,620 font 'sans-serif,14' background '#ffffff'
set output picture
set title 'What keys get of a limit that they share' font ',16'

stats data using 2 nooutput
rows = STATS_records
set border 1 linecolor '#808080'
set xlabel 'units, as a part of the exact max-min share'
set xrange [1:4000]
set logscale x
set xtics nomirror ('1 %%' 1, '10 %%' 10, '100 %%' 100, '1,000 %%' 1000) textcolor '#404040'
set yrange [0.3 - rows:0.7]
set ytics nomirror scale 0 textcolor '#404040'
set grid xtics linecolor '#e0e0e0' linewidth 0.7
set lmargin 45
set key outside top center horizontal Left reverse samplen 1
set arrow from 100, graph 0 to 100, graph 1 nohead linecolor '#b0b0b0' dashtype 2 back

plot data using 3:(-$0):ytic(1) with points pointtype 7 pointsize 0.9 linecolor rgb '#d95f02' \
         title 'first come, first served', \
     data using 2:(-$0) with points pointtype 7 pointsize 1.1 linecolor rgb '#0868ac' \
         title 'fair'
