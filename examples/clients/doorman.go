// A client of Doorman for one rate, over HTTP, with nothing but the standard library.
//
//	client := NewClient([]string{"http://127.0.0.1:15050"}, "db/orders", 50, Options{})
//	defer client.Close()
//	if client.TryUse(1) {
//		// do one unit of work
//	}
//
// Copy this file into your program. The rules are those of examples/protocol.md, "How to write a
// client". A goroutine renews the lease in the background. Every method may be called from any
// goroutine.
package main

import (
	"bytes"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	burst        = 0.1             // seconds of the rate that an idle client saves
	timeout      = 5 * time.Second // for one request
	redirectsMax = 5
)

// Options of a client. SafeCapacity is the rate of a client that has no lease; -1 means unlimited.
// A server can change it.
type Options struct {
	SafeCapacity float64
	Token        string
}

type lease struct {
	ID        int64   `json:"id"`
	Node      string  `json:"node"`
	Capacity  float64 `json:"capacity"`
	ExpiresIn float64 `json:"expires_in"`
}

type request struct {
	ClientID string `json:"client_id"`
	Resource []item `json:"resource"`
}

type item struct {
	ResourceID string   `json:"resource_id"`
	Wants      *float64 `json:"wants,omitempty"` // only in get_capacity
	Has        *lease   `json:"has,omitempty"`
	ID         int64    `json:"id,omitempty"` // only in release_capacity
}

type response struct {
	Mastership *struct {
		HTTPAddress string `json:"http_address"`
	} `json:"mastership"`
	Response []struct {
		Gets *struct {
			lease
			RefreshInterval float64 `json:"refresh_interval"`
		} `json:"gets"`
		Refused *struct {
			Reason          string  `json:"reason"`
			RefreshInterval float64 `json:"refresh_interval"`
		} `json:"refused"`
		SafeCapacity *float64 `json:"safe_capacity"`
	} `json:"response"`
}

// Client holds the lease of one resource.
type Client struct {
	id, resource, token string
	wants               float64
	urls                []string
	url                 string // the process that answered last; only the goroutine uses it
	backoff             float64
	http                http.Client
	stop, stopped       chan struct{}

	mutex        sync.Mutex // guards the rest
	lease        lease
	end          time.Time // of the lease
	safeCapacity float64
	refused      string    // the reason of the last response, such as "UNMATCHED"; "": a lease
	paidUntil    time.Time // see TryUse
}

// NewClient starts a client. wants is a rate, in units per second.
func NewClient(urls []string, resource string, wants float64, options Options) *Client {
	host, _ := os.Hostname()
	unique := make([]byte, 8)
	crand.Read(unique)
	client := &Client{
		id:       fmt.Sprintf("%s:%d:%x", host, os.Getpid(), unique),
		resource: resource, token: options.Token, wants: wants,
		urls: urls, url: urls[0], backoff: 1,
		stop: make(chan struct{}), stopped: make(chan struct{}),
		safeCapacity: options.SafeCapacity,
		paidUntil:    time.Now(), // a new client has saved nothing
	}
	client.http.Timeout = timeout
	client.http.CheckRedirect = func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}
	go client.run()
	return client
}

// Rate returns how many units the client may use in a second now, and whether this is a lease.
func (client *Client) Rate() (rate float64, isLease bool) {
	client.mutex.Lock()
	defer client.mutex.Unlock()
	return client.rateAt(time.Now())
}

func (client *Client) rateAt(now time.Time) (float64, bool) {
	if now.Before(client.end) {
		return client.lease.Capacity, true
	}
	if client.safeCapacity < 0 {
		return math.Inf(1), false
	}
	return client.safeCapacity, false
}

// Refused returns why the last request got no lease, such as "UNMATCHED", or "".
func (client *Client) Refused() string {
	client.mutex.Lock()
	defer client.mutex.Unlock()
	return client.refused
}

// TryUse takes n units and returns true, or returns false if the rate does not allow them now.
//
// paidUntil is the time up to which the rate has paid for the units that were used. The time since
// then is saved, but at most burst, or the time of these n units if that is longer.
func (client *Client) TryUse(n float64) bool {
	client.mutex.Lock()
	defer client.mutex.Unlock()
	now := time.Now()
	rate, _ := client.rateAt(now)
	cost := n / rate
	if rate <= 0 || cost > 1e9 { // a Duration has at most 292 years
		return false
	}
	paidUntil := client.paidUntil
	if saved := now.Add(-duration(math.Max(burst, cost))); paidUntil.Before(saved) {
		paidUntil = saved
	}
	paidUntil = paidUntil.Add(duration(cost))
	if paidUntil.After(now) {
		return false
	}
	client.paidUntil = paidUntil
	return true
}

// Close stops using the lease, and gives it back, so that others need not wait for its end. Call it
// once.
func (client *Client) Close() {
	close(client.stop)
	<-client.stopped
	client.mutex.Lock()
	last, isLive := client.lease, time.Now().Before(client.end)
	client.end, client.safeCapacity = time.Time{}, 0
	client.mutex.Unlock()
	if isLive { // if the release is lost, the lease ends by itself
		client.post(client.url, "release_capacity", item{ResourceID: client.resource, ID: last.ID})
	}
}

func (client *Client) run() {
	defer close(client.stopped)
	for {
		timer := time.NewTimer(duration(client.renew()))
		select {
		case <-client.stop:
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

func (client *Client) isStopping() bool {
	select {
	case <-client.stop:
		return true
	default:
		return false
	}
}

// renew asks the process that answered last, then the other addresses, and follows the master. It
// returns how many seconds to wait before the next call.
func (client *Client) renew() float64 {
	answered := false
	for _, url := range append([]string{client.url}, client.urls...) {
		for hop := 0; url != "" && hop <= redirectsMax && !client.isStopping(); hop++ {
			wait, master, err := client.ask(url)
			if err != nil {
				break
			}
			answered = true
			if wait >= 0 {
				client.backoff = 1
				return wait
			}
			url = master
		}
	}
	if answered { // there is no master at present
		return random(1, 4)
	}
	client.backoff = math.Min(60, client.backoff*2)
	return random(1, client.backoff)
}

// ask sends one request. It returns how long to wait, or -1 and the address of the master.
func (client *Client) ask(url string) (wait float64, master string, err error) {
	resource := item{ResourceID: client.resource, Wants: &client.wants}
	client.mutex.Lock()
	sent, end := time.Now(), client.end
	if sent.Before(end) { // what the request claims is what the client may use from now on
		client.lease.Capacity = math.Min(client.lease.Capacity, client.wants)
		has := client.lease
		has.ExpiresIn = end.Sub(sent).Seconds()
		resource.Has = &has
	}
	client.mutex.Unlock()
	answer, err := client.post(url, "get_capacity", resource)
	if err != nil {
		return 0, "", err
	}
	if answer.Mastership != nil {
		return -1, answer.Mastership.HTTPAddress, nil
	}
	client.mutex.Lock()
	defer client.mutex.Unlock()
	now := time.Now()
	if now.Sub(sent) > timeout || (resource.Has != nil && !now.Before(end)) {
		return 0, "", errors.New("the response came too late")
	}
	if len(answer.Response) != 1 {
		return 0, "", errors.New("the response is not valid")
	}
	client.url = url
	result := answer.Response[0]
	if result.SafeCapacity != nil {
		client.safeCapacity = *result.SafeCapacity
	}
	if result.Gets == nil && result.Refused == nil {
		return 0, "", errors.New("the response is not valid")
	}
	if result.Refused != nil { // the last lease stays until its end
		client.refused = result.Refused.Reason
		return spread(result.Refused.RefreshInterval), "", nil
	}
	client.refused = ""
	client.lease = result.Gets.lease
	client.end = sent.Add(duration(result.Gets.ExpiresIn))
	if resource.Has != nil && client.lease.Capacity < resource.Has.Capacity {
		return 0, "", nil // confirm the smaller lease, so that others get the difference
	}
	return spread(result.Gets.RefreshInterval), "", nil
}

func (client *Client) post(url, method string, resource item) (*response, error) {
	body, err := json.Marshal(request{client.id, []item{resource}})
	if err != nil {
		return nil, err
	}
	post, err := http.NewRequest("POST", url+"/v1/"+method, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	post.Header.Set("Content-Type", "application/json")
	if client.token != "" {
		post.Header.Set("Authorization", "Bearer "+client.token)
	}
	reply, err := client.http.Do(post)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: status %d", url, reply.StatusCode)
	}
	answer := new(response)
	return answer, json.NewDecoder(reply.Body).Decode(answer)
}

func duration(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second))
}

func random(from, to float64) float64 { return from + rand.Float64()*(to-from) }

func spread(seconds float64) float64 { return seconds * random(1, 1.05) }

// Uses as much as the server allows. Ten times a second, prints the time, the units that were used
// since the last line, the rate, and whether the rate is a lease.
func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "Usage: doorman URL[,URL...] RESOURCE WANTS")
		os.Exit(2)
	}
	wants, err := strconv.ParseFloat(os.Args[3], 64)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	rand.Seed(time.Now().UnixNano())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	client := NewClient(strings.Split(os.Args[1], ","), os.Args[2], wants, Options{})
	defer client.Close()
	used, lineDue := 0, time.Now().Add(100*time.Millisecond)
	for len(signals) == 0 {
		if client.TryUse(1) {
			used++ // here is the work
		} else {
			time.Sleep(5 * time.Millisecond)
		}
		if now := time.Now(); now.After(lineDue) {
			rate, isLease := client.Rate()
			source := "fallback"
			if isLease {
				source = "lease"
			}
			fmt.Printf("%.3f %d %.3f %s\n", float64(now.UnixNano())/1e9, used, rate, source)
			used, lineDue = 0, now.Add(100*time.Millisecond)
		}
	}
}
