// Runs the package of clients/go for shard_clients_test.c: see run_shards.py.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"doorman.example/doorman"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	signals, ctx := make(chan os.Signal, 4), context.Background()
	signal.Notify(signals, syscall.SIGUSR2, syscall.SIGTERM)
	url, token, keys := os.Args[1], os.Args[2], os.Args[3:]
	client, err := doorman.New(doorman.Options{Token: token, PermitTimeout: 3 * time.Second}, url)
	check(err)
	for goesOn := true; goesOn; goesOn = <-signals == syscall.SIGUSR2 {
		granted := 0
		for i := 0; i < 20*len(keys); i++ {
			permit, err := client.AcquireItems(ctx, doorman.AcquireOptions{Timeout: 20 * time.Second},
				doorman.Item{Resource: "api", Key: keys[i%len(keys)]})
			check(err)
			if permit.Granted && permit.By == doorman.ByServer {
				granted++
			}
		}
		reservation, err := client.Reserve(ctx, doorman.ReserveOptions{Timeout: 20 * time.Second},
			doorman.Item{Resource: "api", Key: keys[len(keys)-1], Cost: 5})
		check(err)
		limit, cancel := context.WithTimeout(ctx, 20*time.Second)
		settled, err := reservation.SettleAndWait(limit, 2)
		cancel()
		counted := "lost"
		if err == nil && settled.Granted && settled.By == doorman.ByServer {
			counted = "settled"
		}
		fmt.Println("round", granted, counted)
	}
	client.Close()
}
