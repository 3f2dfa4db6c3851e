// Package cores has the parts of a client of Doorman that have no clock, no goroutine and no
// connection, for programs with a loop of their own. Most programs use the client of package
// doorman, which has both cores.
//
//	addresses := []string{"http://127.0.0.1:15050"}
//	core, err := cores.NewLeaseCore("web-7", addresses, now, cores.LeaseOptions{})
//	resource, err := core.Open("db/orders", cores.ResourceOptions{Wants: 50}, now)
//	for request := core.Next(now); request != nil; request = core.Next(now) {
//		... // send it, and pass what comes to core.Response or core.Failed
//	}
//	core.Due() // when to call Next again
//
// A time is a time.Duration since any point of a clock that never goes back. Nothing here may be
// used by two goroutines at once. The letters of rules, such as K1 and P22, are those of doorman.h
// and doorman_permits.h.
package cores
