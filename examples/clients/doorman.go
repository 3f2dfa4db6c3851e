// A client of Doorman for one rate, over HTTP, with nothing but the standard library.
//
//	client := NewClient([]string{"http://127.0.0.1:15050"}, "db/orders", 50, 0, "")
//	defer client.Close()
//	if client.TryUse(1) { ... } // do one unit of work
//
// Copy this file into your program. Numbers such as (4) name the "Rules for a client" of
// examples/protocol.md. A goroutine renews the lease in the background. TryUse and State may be
// called from any goroutine. The client wants a fixed rate.
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"math"
	random "math/rand"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const burst = 0.1 // seconds of the rate that an idle client saves

type object map[string]any

type result struct { // `gets` or `refused`
	ID              int64
	Capacity        float64
	ExpiresIn       float64 `json:"expires_in"`
	RefreshInterval float64 `json:"refresh_interval"`
	Node, Reason    string
}

type answer struct {
	Mastership *struct {
		HTTPAddress string `json:"http_address"`
	}
	Response []struct {
		Gets, Refused *result
		SafeCapacity  *float64 `json:"safe_capacity"`
	}
}

// Client holds the lease of one resource. The mutex guards the last six fields.
type Client struct {
	id, resource, token, url string
	urls                     []string
	wants                    float64
	failures                 float64
	next                     int
	http                     http.Client
	stop, stopped            chan struct{}
	mutex                    sync.Mutex
	lease                    result
	wasCut                   bool
	end, paidUntil           time.Time
	safeCapacity             float64
	problem                  string // why the last request got no lease, for people
}

// NewClient starts a client. wants and safeCapacity are rates, in units per second. A server can
// change the safe capacity. The client uses it when it has no lease; -1 means unlimited.
func NewClient(urls []string, resource string, wants, safeCapacity float64, token string) *Client {
	host, _ := os.Hostname()
	unique := make([]byte, 8)
	rand.Read(unique)
	c := &Client{id: fmt.Sprintf("%s:%d:%x", host, os.Getpid(), unique), resource: resource,
		token: token, urls: urls, url: urls[0], wants: wants, safeCapacity: safeCapacity,
		stop: make(chan struct{}), stopped: make(chan struct{}), paidUntil: time.Now()}
	c.http.Timeout = 5 * time.Second
	c.http.Transport = &http.Transport{DisableKeepAlives: true} // a new connection for each request
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}
	go c.run()
	return c
}

// State returns how many units the client may use in a second now, whether this is a lease, and why
// the last request got no lease.
func (c *Client) State() (rate float64, isLease bool, problem string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.rate(), c.left() > 0, c.problem
}

// left returns the seconds to the end of the lease. Both clocks of a Time count, because the
// monotonic one stops while the machine is suspended (1).
func (c *Client) left() float64 {
	now := time.Now()
	return math.Min(c.end.Sub(now).Seconds(), c.end.Round(0).Sub(now.Round(0)).Seconds())
}

func (c *Client) rate() float64 {
	if c.left() > 0 {
		return c.lease.Capacity // also if it is 0 (4)
	} else if c.safeCapacity < 0 {
		return math.Inf(1)
	}
	return c.safeCapacity // (8)
}

// TryUse takes n units and returns true, or returns false if the rate does not allow them now.
//
// paidUntil is the time up to which the rate has paid for the units that were used. The time since
// then is saved, but at most burst, or the time of these n units if that is longer.
func (c *Client) TryUse(n float64) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	now, cost := time.Now(), n/c.rate()
	if !(cost < 1e9) { // the rate is 0, or a Duration is too short
		return false
	}
	paidUntil := now.Add(-seconds(math.Max(burst, cost)))
	if c.paidUntil.After(paidUntil) {
		paidUntil = c.paidUntil
	}
	if paidUntil = paidUntil.Add(seconds(cost)); paidUntil.After(now) {
		return false
	}
	c.paidUntil = paidUntil
	return true
}

// Close gives the lease back, so that others need not wait for its end. Call it once, after the last
// TryUse.
func (c *Client) Close() {
	close(c.stop)
	<-c.stopped       // after the response in flight (9)
	if c.left() > 0 { // if the release is lost, the lease ends by itself
		c.post("release_capacity", object{"resource_id": c.resource, "id": c.lease.ID})
	}
}

func (c *Client) run() {
	defer close(c.stopped)
	for {
		select {
		case <-c.stop:
			return
		case <-time.After(seconds(c.renew())):
		}
	}
}

// renew asks, and follows the master. It returns how many seconds to wait before the next call.
func (c *Client) renew() float64 {
	failuresMax := 6.0
	for hop := 0; hop <= 5; hop++ {
		wait, master, err := c.ask()
		if err == nil && wait >= 0 {
			c.failures = 0
			return wait
		}
		if failuresMax = 2; err != nil {
			failuresMax = 6
		}
		isPlain := strings.HasPrefix(c.url, "https:") && !strings.HasPrefix(master, "https:")
		if master == "" || isPlain {
			break
		}
		c.url = master // (7)
	}
	c.failures = math.Min(c.failures+1, failuresMax) // (6)
	c.next = (c.next + 1) % len(c.urls)
	c.url = c.urls[c.next]
	wait := 1 + random.Float64()*(math.Min(60, math.Exp2(c.failures))-1)
	if left := c.left(); left > 0 {
		wait = math.Max(1, math.Min(wait, left/4))
	}
	return wait
}

// ask sends one request. It returns how long to wait, or -1 and the address of the master.
func (c *Client) ask() (wait float64, master string, err error) {
	item := object{"resource_id": c.resource, "wants": c.wants}
	sent, left, last := time.Now(), c.left(), c.lease
	if left > 0 { // (3)
		item["has"] = object{"id": last.ID, "node": last.Node, "capacity": last.Capacity,
			"expires_in": left}
	}
	a, err := c.post("get_capacity", item)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if err != nil {
		c.problem = err.Error()
		return 0, "", err
	} else if a.Mastership != nil {
		c.problem = "there is no master"
		return -1, a.Mastership.HTTPAddress, nil
	} else if left > 0 && c.left() <= 0 {
		return 0, "", nil // ask again without the lease (2)
	}
	if a.Response[0].SafeCapacity != nil {
		c.safeCapacity = *a.Response[0].SafeCapacity
	}
	if refused := a.Response[0].Refused; refused != nil { // the last lease stays until its end
		c.problem = refused.Reason
		return late(refused.RefreshInterval), "", nil
	}
	c.lease, c.problem = *a.Response[0].Gets, ""
	c.end = sent.Add(seconds(c.lease.ExpiresIn))
	wasCut := c.wasCut
	if c.wasCut = left > 0 && c.lease.Capacity < last.Capacity; c.wasCut && wasCut {
		return 1, "", nil
	} else if c.wasCut { // confirm the smaller lease, so that others get the difference (4)
		return 0, "", nil
	}
	return late(math.Min(c.lease.RefreshInterval, math.Max(1, c.lease.ExpiresIn/2))), "", nil // (5)
}

func (c *Client) post(method string, item object) (*answer, error) {
	body, _ := json.Marshal(object{"client_id": c.id, "resource": []object{item}})
	request, err := http.NewRequest("POST", c.url+"/v1/"+method, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	reply, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	a := new(answer)
	if err == nil {
		err = json.Unmarshal(text, a)
	}
	isValid := a.Mastership != nil || len(a.Response) == 1 &&
		(a.Response[0].Gets != nil || a.Response[0].Refused != nil)
	if reply.StatusCode != 200 || err != nil || !isValid && method == "get_capacity" {
		return nil, fmt.Errorf("status %d: %s", reply.StatusCode, text)
	}
	return a, nil
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

func late(wait float64) float64 { return wait * (1 + 0.05*random.Float64()) }

// Uses as much as the server allows. Ten times a second, prints the time, the units that were used
// since the last line, the rate, and whether the rate is a lease.
func main() {
	wants, err := strconv.ParseFloat(os.Args[len(os.Args)-1], 64)
	if len(os.Args) != 4 || err != nil {
		fmt.Fprintln(os.Stderr, "Usage: doorman URL[,URL...] RESOURCE WANTS")
		os.Exit(2)
	}
	random.Seed(time.Now().UnixNano())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	client := NewClient(strings.Split(os.Args[1], ","), os.Args[2], wants, 0, "")
	defer client.Close()
	used, lineDue := 0, time.Now().Add(100*time.Millisecond)
	for len(signals) == 0 {
		if client.TryUse(1) {
			used++ // here is the work
		} else {
			time.Sleep(5 * time.Millisecond)
		}
		if now := time.Now(); now.After(lineDue) {
			rate, isLease, _ := client.State()
			source := map[bool]string{true: "lease", false: "fallback"}[isLease]
			fmt.Printf("%.3f %d %.3f %s\n", float64(now.UnixNano())/1e9, used, rate, source)
			used, lineDue = 0, now.Add(100*time.Millisecond)
		}
	}
}
