// Runs the reservations in Go for reservation_clients_test.c: see run_reservation.py.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"run/doorman"
)

func fail(r *doorman.Reservation) {
	defer func() { fmt.Println(recover()) }()
	defer r.Settle(r.Cost)
	panic(map[bool]string{true: "failed", false: "refused"}[r.Granted])
}

func main() {
	settles, ends := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(settles, syscall.SIGUSR2)
	signal.Notify(ends, syscall.SIGTERM)
	client := doorman.Reservations{URLs: strings.Split(os.Args[1], ",")}
	first := client.Reserve(os.Args[2], "acme", 6)
	fmt.Println(map[bool]string{true: "granted", false: "refused"}[first.Granted])
	<-settles
	first.Settle(1)
	second := client.Reserve(os.Args[2], "acme", 3)
	fail(second)
	second.Settle(0) // no effect
	<-ends
	client.Close()
	fmt.Println("lost", client.Lost())
}
