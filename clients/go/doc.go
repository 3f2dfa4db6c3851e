// Package doorman is a client of Doorman over HTTP: leases of rates and gauges, permits, holds and
// reservations.
//
//	client, err := doorman.New(doorman.Options{}, "http://127.0.0.1:15050")
//	permit, err := client.Acquire(ctx, "login", "alice")
//	if permit.Granted { ... }
//	client.Close()
//
// All methods may be called by any goroutine. In an options struct the zero value of a field is its
// default. If no server answers, a fallback decides: this is no error. Errors are those of wrong
// arguments, of a context that has ended, and ErrClosed.
package doorman
