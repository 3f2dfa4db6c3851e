// Runs the client in Go for clients_test.c. Prints 20 lines a second: the time, the units that were
// used since the last line, the rate, and whether the rate is a lease.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"run/doorman"
)

func main() {
	wants, _ := strconv.ParseFloat(os.Args[3], 64)
	client := doorman.Client{URLs: strings.Split(os.Args[1], ","), Resource: os.Args[2], Wants: wants}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	client.Start()
	defer client.Close()
	sources := map[bool]string{true: "lease", false: "fallback"}
	for len(signals) == 0 {
		time.Sleep(50 * time.Millisecond)
		used := 0
		for used < 100 && client.TryUse(1) {
			used++
		}
		rate, isLease := client.Rate()
		now := float64(time.Now().UnixNano()) / 1e9
		fmt.Printf("%.3f %d %.3f %s\n", now, used, rate, sources[isLease])
	}
}
