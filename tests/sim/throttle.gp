# Draws what each policy does when too many requests arrive: gnuplot
# -e "data='build/sim/throttle.dat'; picture='throttle.svg'" throttle.gp
# Columns of the data: the load, and for each policy the goodput in % and the p99 in ms.

set terminal svg size 900,760 font 'sans-serif,14' background '#ffffff'
set output picture
set multiplot layout 2,1 title 'A server with too many requests: 16 workers, bimodal service' \
    font ',16'

set logscale x
set xrange [0.5:10]
set xtics (0.5, 0.8, 1, 1.5, 2, 3, 5, 7, 10)
set border 3 linecolor '#808080'
set tics nomirror textcolor '#404040'
set grid ytics linecolor '#e0e0e0' linewidth 0.7
set lmargin 13
set rmargin 24
set key outside right center reverse Left spacing 1.3 samplen 2.5

# Doorman is drawn last, above the others.
array names[6] = ['Doorman', 'no throttle', 'bounded FIFO', 'fixed concurrency', 'CoDel (folly)', \
                  'CoDel with LIFO']
array colors[6] = ['#0868ac', '#808080', '#d95f02', '#1b9e77', '#7570b3', '#e6ab02']
width(i) = i == 1 ? 3.5 : 2

set ylabel "answered within 200 ms,\n% of the capacity"
set yrange [0:105]
plot for [i = 6:1:-1] data using 1:(column(2 * i)) with lines linewidth width(i) \
         linecolor rgb colors[i] title names[i]

set ylabel "99 % of the answers\ncome within, ms"
set xlabel 'requests that arrive, as a multiple of what the server can do'
set logscale y
set yrange [50:5000]
set ytics (50, 100, 200, 500, '1,000' 1000, '2,000' 2000, '5,000' 5000)
plot for [i = 6:1:-1] data using 1:(column(2 * i + 1)) with lines linewidth width(i) \
         linecolor rgb colors[i] notitle
unset multiplot
