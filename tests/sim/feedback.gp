# Draws how the capacity follows reports of overload: gnuplot
# -e "data='build/sim/feedback.dat'; picture='feedback.svg'" feedback.gp
# Columns of the data: refresh intervals, and the use in % for each line.

set terminal svg size 900,420 font 'sans-serif,14' background '#ffffff'
set output picture
set title 'Servers lose half of what they can do, and recover' font ',16'

set xrange [10:100]
set yrange [0:110]
set border 3 linecolor '#808080'
set tics nomirror textcolor '#404040'
set grid ytics linecolor '#e0e0e0' linewidth 0.7
set lmargin 13
set key inside right bottom reverse Left spacing 1.3 samplen 2.5
set xlabel 'refresh intervals'
set ylabel "units a second that clients use,\n% of the configured capacity"

can(x) = x < 20 || x >= 60 ? 105 : 50
set samples 2000
plot can(x) with lines linewidth 1.5 dashtype 2 linecolor rgb '#808080' \
         title 'what the servers can do', \
     data using 1:3 with lines linewidth 2 linecolor rgb '#d95f02' \
         title 'clients of a node below the root', \
     data using 1:2 with lines linewidth 3 linecolor rgb '#0868ac' title 'clients of the root'
