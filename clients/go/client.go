package doorman

import (
	"context"
	"crypto/tls"
	"log"
	"net/http"
	"time"

	"doorman.example/doorman/cores"
)

const closeTimeout = 5 * time.Second

// Options are those of a client. The zero value of a field is its default.
type Options struct {
	// Token is that of the server.
	Token string
	// TokenSource returns the token of each request, for tokens that change.
	TokenSource func() (string, error)
	// TLS is for https addresses. The default has the authorities of the system.
	TLS *tls.Config
	// CAFile is a file with the authorities of the servers in PEM, instead of those of the system.
	CAFile string
	// Header has further headers of each request.
	Header http.Header
	// ClientID is the name of the client. The default is a name that nobody can guess.
	ClientID string
	// Permits says how the client treats its permits.
	Permits PermitPolicy
	// LeaseTimeout is how long a request for leases may take. The default is 5 s.
	LeaseTimeout time.Duration
	// PermitTimeout is how long a request for permits may take. The default is 1 s.
	PermitTimeout time.Duration
	// OnWarning gets a text for each failure. It must not block. The default writes it with package
	// log.
	OnWarning func(text string)
}

// Client has leases, permits, holds and reservations.
type Client struct {
	engine  *engine
	waiters map[*cores.Resource]*waiters // the mutex of the engine guards it
}

// New makes a client. addresses are such as http://HOST:PORT, of all processes of a node, which are
// tried in turn.
func New(options Options, addresses ...string) (*Client, error) {
	if options.OnWarning == nil {
		options.OnWarning = func(text string) { log.Printf("doorman: %s", text) }
	}
	engine, err := newEngine(addresses, &options)
	if err != nil {
		return nil, err
	}
	return &Client{engine: engine, waiters: map[*cores.Resource]*waiters{}}, nil
}

// ClientID returns the name of this client at the servers.
func (c *Client) ClientID() string { return c.engine.clientID }

// Rate opens a rate, in units per second.
func (c *Client) Rate(resource string, options ResourceOptions) (*Rate, error) {
	options.Kind = cores.Rate
	handle, err := c.open(resource, options)
	if err != nil {
		return nil, err
	}
	return &Rate{handle}, nil
}

// Gauge opens a gauge: units in use at once.
func (c *Client) Gauge(resource string, options ResourceOptions) (*Gauge, error) {
	options.Kind = cores.Gauge
	handle, err := c.open(resource, options)
	if err != nil {
		return nil, err
	}
	return &Gauge{handle}, nil
}

// open opens a resource. It warns if it is open already with other options (K5).
func (c *Client) open(name string, options ResourceOptions) (*Handle, error) {
	e := c.engine
	e.mutex.Lock()
	if e.stopping {
		e.mutex.Unlock()
		return nil, ErrClosed
	}
	resource, err := e.leases.Open(name, options, e.clock.now())
	if err != nil {
		e.mutex.Unlock()
		return nil, err
	}
	differs := resource.Differs()
	handle := &Handle{engine: e, resource: resource, waiters: c.waitersOf(resource),
		closed: make(chan struct{})}
	e.step()
	e.mutex.Unlock()
	if differs != "" {
		e.warn(name + ": " + differs + ": not as in the first opening, which stays in force")
	}
	return handle, nil
}

// waitersOf returns the queue of a resource, which all its handles share, and forgets those of
// resources that are no more. The caller has the mutex of the engine.
func (c *Client) waitersOf(resource *cores.Resource) *waiters {
	if known := c.waiters[resource]; known != nil {
		return known
	}
	open := map[*cores.Resource]*waiters{resource: {}}
	for _, other := range c.engine.leases.Resources() {
		if known := c.waiters[other]; known != nil {
			open[other] = known
		}
	}
	c.waiters = open
	return open[resource]
}

// AcquireOptions are those of AcquireItems.
type AcquireOptions struct {
	// Timeout is when the fallback decides. The default is 1 s. A negative one waits for no server.
	Timeout time.Duration
	// MaxWait is how long the caller can wait until it uses the units.
	MaxWait time.Duration
	// Equal gives all items the same whole number of units.
	Equal bool
	// Detail gives the decision the figures of its limit.
	Detail bool
}

// Acquire asks for a permit of one unit. The decision comes within a second.
func (c *Client) Acquire(ctx context.Context, resource, key string) (*Acquired, error) {
	return c.AcquireItems(ctx, AcquireOptions{}, Item{Resource: resource, Key: key})
}

// AcquireItems asks for a permit. All items are granted, or none.
func (c *Client) AcquireItems(ctx context.Context, options AcquireOptions,
	items ...Item) (*Acquired, error) {
	permit := cores.Permit{Items: items, MaxWait: options.MaxWait, Equal: options.Equal,
		Detail: options.Detail}
	return c.acquire(ctx, permit, options.Timeout, nil)
}

// HoldOptions are those of Hold.
type HoldOptions struct {
	// Timeout is when the fallback decides. The default is MaxWait and 5 s.
	Timeout time.Duration
	// MaxWait is how long to wait in the queue of the server.
	MaxWait time.Duration
	// TimeToLive is that of the hold; 0: that of the limits.
	TimeToLive time.Duration
	// Priority is from 0 to 15; the default is 1. Higher ones leave the queue first.
	Priority int
	// HasPriority says that a Priority of 0 is meant.
	HasPriority bool
	// Share ends the wait with the reason SHARED when a hold of the same resource and key is
	// released.
	Share bool
	// SettleWithin makes the hold a reservation too, which Hold.Settle settles; at most an hour.
	SettleWithin time.Duration
	// OnGone is called when the hold has become smaller, or is gone, without a call of this program.
	OnGone func(Held)
}

// Hold asks for units that stay taken until they are released. A wait whose context ends gives up
// its place in the queue.
func (c *Client) Hold(ctx context.Context, options HoldOptions, items ...Item) (*Hold, error) {
	permit := cores.Permit{Items: append([]Item{}, items...), Hold: true, MaxWait: options.MaxWait,
		TimeToLive: options.TimeToLive, Priority: options.Priority,
		HasPriority: options.HasPriority, Share: options.Share, SettleWithin: options.SettleWithin}
	if options.Timeout == 0 {
		options.Timeout = options.MaxWait + 5*time.Second
	}
	decision, err := c.acquire(ctx, permit, options.Timeout, options.OnGone)
	if err != nil {
		return nil, err
	}
	return &Hold{engine: c.engine, items: permit.Items, Decision: decision,
		Granted: decision.Granted}, nil
}

// ReserveOptions are those of Reserve.
type ReserveOptions struct {
	// Timeout is when the fallback decides. The default is 1 s.
	Timeout time.Duration
	// SettleWithin is within which time to settle, at most an hour. The default is a minute.
	SettleWithin time.Duration
	// Detail gives the decision the figures of its limit.
	Detail bool
}

// Reserve charges what an action may cost, before its cost is known.
func (c *Client) Reserve(ctx context.Context, options ReserveOptions,
	items ...Item) (*Reservation, error) {
	if options.SettleWithin == 0 {
		options.SettleWithin = time.Minute
	}
	permit := cores.Permit{Items: append([]Item{}, items...), Detail: options.Detail,
		SettleWithin: options.SettleWithin}
	decision, err := c.acquire(ctx, permit, options.Timeout, nil)
	if err != nil {
		return nil, err
	}
	r := &Reservation{engine: c.engine, items: permit.Items, Decision: decision,
		Granted: decision.Granted}
	for _, item := range items {
		r.reserved = append(r.reserved, item.Units())
	}
	return r, nil
}

// acquire asks for a permit. A hold or reservation that no caller gets is given back.
func (c *Client) acquire(ctx context.Context, permit cores.Permit, timeout time.Duration,
	onGone func(Held)) (*Acquired, error) {
	e := c.engine
	if timeout == 0 {
		timeout = time.Second
	} else if timeout < 0 {
		timeout = 0
	}
	var call *cores.Call
	ask := func(s *sink) (err error) {
		if call, err = e.permits.Acquire(permit, timeout, s, e.clock.now()); err == nil {
			e.watch(s, call, onGone)
		}
		return err
	}
	abandon := func() func(*Acquired) {
		delete(e.onGone, call.Number())
		e.permits.Release(call.HoldNumber(), nil, e.clock.now())
		return func(acquired *Acquired) {
			if acquired.Reservation != 0 {
				_ = e.permits.Settle(acquired.Reservation, permit.Items,
					make([]float64, len(permit.Items)), 0, nil, e.clock.now())
			}
		}
	}
	return e.decision(ctx, ask, abandon)
}

// Report says what an action has cost. It does not wait. Negative: units come back.
func (c *Client) Report(resource, key string, cost float64) error {
	e := c.engine
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if e.stopping {
		return ErrClosed
	}
	err := e.permits.Report(Item{Resource: resource, Key: key}, cost, e.clock.now())
	e.step()
	return err
}

// SeizeOptions are those of Seize.
type SeizeOptions struct {
	// TimeToLive is that of the hold; 0: that of the limits.
	TimeToLive time.Duration
	// OnGone is called when the hold has become smaller, or is gone, without a call of this program.
	OnGone func(Held)
}

// Seize makes the units of a transfer a hold of this client. It waits a second, or until the
// deadline of the context.
func (c *Client) Seize(ctx context.Context, transferID int64, options SeizeOptions) (*Hold, error) {
	e := c.engine
	var call *cores.Call
	decision, err := e.decision(ctx, func(s *sink) (err error) {
		call, err = e.permits.Seize(transferID, options.TimeToLive, timeoutOf(ctx, time.Second), s,
			e.clock.now())
		if err == nil {
			e.watch(s, call, options.OnGone)
		}
		return err
	}, func() func(*Acquired) {
		delete(e.onGone, call.Number())
		e.permits.Release(call.HoldNumber(), nil, e.clock.now())
		return func(*Acquired) {}
	})
	if err != nil {
		return nil, err
	}
	return &Hold{engine: e, Decision: decision, Granted: decision.Granted}, nil
}

// KillSwitch says whether nothing is refused. Refusals are still counted.
func (c *Client) KillSwitch(on bool) {
	c.engine.mutex.Lock()
	defer c.engine.mutex.Unlock()
	c.engine.leases.KillSwitch(on)
	c.engine.permits.KillSwitch(on)
	c.engine.stepAndWake()
}

// Counts returns the counters of the permits of this client.
func (c *Client) Counts() Counts {
	c.engine.mutex.Lock()
	defer c.engine.mutex.Unlock()
	return c.engine.permits.Read()
}

// Shutdown gives all leases and holds back, and waits until the servers know it, or the context
// ends. What servers do not learn ends by itself.
func (c *Client) Shutdown(ctx context.Context) error { return c.engine.stop(ctx) }

// Close is Shutdown with at most 5 s. It returns no error, because what servers do not learn ends
// by itself.
func (c *Client) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = c.Shutdown(ctx)
}
