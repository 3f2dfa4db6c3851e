package doorman

import (
	"errors"
	"fmt"

	"doorman.example/doorman/cores"
)

// The types that the client shares with its cores.
type (
	// Acquired is a decision, or the result of a settle, transfer or seizure.
	Acquired = cores.Acquired
	// Item is one item of a permit: units of one resource for one key.
	Item = cores.Item
	// ResourceOptions say how a rate or gauge is used.
	ResourceOptions = cores.ResourceOptions
	// ResourceInfo is the state of a rate or gauge.
	ResourceInfo = cores.ResourceInfo
	// PermitPolicy says how a client treats its permits.
	PermitPolicy = cores.PermitPolicy
	// LocalLimit is a limit of this process, for the fallback Local.
	LocalLimit = cores.Limit
	// Counts are the counters of permits.
	Counts = cores.Counts
	// Held is a hold, as its application may use it.
	Held = cores.Held
	// TransferOptions are those of Hold.Transfer.
	TransferOptions = cores.TransferOptions
)

// The fallbacks of a rate or gauge: what may be used without a lease.
const (
	// Safe is the safe capacity that a server has sent last, and before it SafeCapacity.
	Safe = cores.Safe
	// Pessimistic is nothing.
	Pessimistic = cores.Pessimistic
	// Optimistic is all wants.
	Optimistic = cores.Optimistic
)

// The fallbacks of permits: what a permit gets if no server decides.
const (
	Open   = cores.Open   // it is granted
	Closed = cores.Closed // it is refused
	Local  = cores.Local  // PermitPolicy.Local decides
)

// Who has decided on a permit: Acquired.By.
const (
	ByServer   = cores.ByServer
	ByRefusal  = cores.ByRefusal  // a server has refused the same a short time ago
	ByFallback = cores.ByFallback // no server has decided
	ByBypass   = cores.ByBypass   // the kill switch or shadow
	ByCaller   = cores.ByCaller   // the hold was released before the decision
	ByPrefetch = cores.ByPrefetch // it was granted out of units that were taken ahead
)

// The kinds of a LocalLimit.
const (
	TokenBucket   = cores.TokenBucket
	FixedWindow   = cores.FixedWindow
	SlidingWindow = cores.SlidingWindow
)

// ErrClosed is the error of a call on a client, rate or gauge that is closed.
var ErrClosed = errors.New("doorman: it is closed")

// RefusedError is the error of Run if a hold or a reservation was refused. Decision says by whom,
// and why.
type RefusedError struct{ Decision *Acquired }

// Error returns the reason and the limit.
func (e *RefusedError) Error() string {
	reason := e.Decision.Reason
	if reason == "" {
		reason = "by the " + e.Decision.By
	}
	if e.Decision.Limit != "" {
		return fmt.Sprintf("doorman: refused: %s (%s)", reason, e.Decision.Limit)
	}
	return "doorman: refused: " + reason
}
