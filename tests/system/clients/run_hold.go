// Runs the hold in Go for hold_clients_test.c. Prints "held", "refused" or "gone". Releases the hold
// after SIGUSR2, and before it ends, after SIGTERM.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"run/doorman"
)

func main() {
	wait, _ := strconv.ParseFloat(os.Args[3], 64)
	hold := doorman.Hold{URLs: strings.Split(os.Args[1], ","), Resource: os.Args[2], Units: 1,
		MaxWait: wait, OnGone: func() { fmt.Println("gone") }}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	cancels := make(chan os.Signal, 1)
	signal.Notify(cancels, syscall.SIGUSR2)
	go func() {
		<-cancels
		hold.Release()
	}()
	fmt.Println(map[bool]string{true: "held", false: "refused"}[hold.Acquire()])
	<-signals
	hold.Release()
	fmt.Println("released")
}
