// A client of Doorman for one rate, over HTTP, with nothing but the standard library.
//
//	client := &Client{URLs: []string{"http://127.0.0.1:15050"}, Resource: "db", Wants: 50}
//	client.Start()
//	if client.TryUse(1) { ... } // do one unit of work
//	client.Close()
//
// Copy this file into your program. Numbers such as (4) name the "Rules for a client" of
// examples/protocol.md. A timer renews the lease in the background. Every method may be called from
// any goroutine.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log"
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

const burst = 0.1 // seconds of the rate that an idle client saves

var transport = &http.Transport{DisableKeepAlives: true} // a new connection for each request
var connection = http.Client{Timeout: 5 * time.Second, Transport: transport}

type object map[string]any

type lease struct { // or a refusal, which only has the last two fields
	ID              int64   `json:"id"`
	Node            string  `json:"node"`
	Capacity        float64 `json:"capacity"`
	ExpiresIn       float64 `json:"expires_in"`
	RefreshInterval float64 `json:"refresh_interval"`
	Reason          string  `json:"reason,omitempty"`
}

type answer struct {
	Error, Mastership map[string]string
	Response          []struct {
		Gets         *lease
		Refused      lease
		SafeCapacity *float64 `json:"safe_capacity"`
	}
}

// Client holds the lease of one resource. Wants and SafeCapacity are rates, in units per second. A
// server can change the safe capacity. The client uses it when it has no lease; -1 means unlimited.
type Client struct {
	URLs                []string
	Resource            string
	Wants, SafeCapacity float64

	asking         sync.Mutex // held while a request is in flight (2); guards the next two lines
	id, url        string
	rounds, cuts   float64
	tried          int        // addresses that have failed in this round (6)
	most, interval float64    // bounds of a pause in seconds
	mutex          sync.Mutex // guards SafeCapacity and the rest
	isClosed       bool
	lease          lease
	end, paidUntil time.Time
}

// Start asks for the first lease. Set the exported fields before, and do not change them later.
func (c *Client) Start() {
	rand.Seed(time.Now().UnixNano())
	host, _ := os.Hostname()
	c.id = fmt.Sprintf("%s:%d:%x", host, os.Getpid(), rand.Uint64())
	c.URLs = append([]string{}, c.URLs...)     // renew changes the order
	c.url, c.paidUntil = c.URLs[0], time.Now() // a new client has saved nothing
	c.most, c.interval = 60, 60
	go c.renew()
}

// Rate returns how many units the client may use in a second now, and whether this is a lease.
func (c *Client) Rate() (rate float64, isLease bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.left() > 0 {
		return c.lease.Capacity, true // also if it is 0 (4)
	} else if c.SafeCapacity < 0 {
		return math.Inf(1), false
	}
	return c.SafeCapacity, false // (8)
}

// left returns the seconds to the end of the lease. Both clocks of a Time count, because the
// monotonic one stops while the machine is suspended (1).
func (c *Client) left() float64 {
	now := time.Now()
	return math.Min(c.end.Sub(now).Seconds(), c.end.Round(0).Sub(now.Round(0)).Seconds())
}

// TryUse takes n units and returns true, or returns false if the rate does not allow them now.
//
// paidUntil is the time up to which the rate has paid for the units that were used. The time since
// then is saved, but at most burst, or the time of these n units if that is longer.
func (c *Client) TryUse(n float64) bool {
	rate, _ := c.Rate()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	cost := n / rate
	saved := math.Min(time.Since(c.paidUntil).Seconds(), math.Max(burst, cost))
	if c.isClosed || rate <= 0 || saved < cost {
		return false
	}
	c.paidUntil = time.Now().Add(seconds(cost - saved))
	return true
}

// Close stops using the lease, and gives it back, so that others need not wait for its end.
func (c *Client) Close() {
	c.asking.Lock() // after the response in flight (9)
	defer c.asking.Unlock()
	c.mutex.Lock()
	c.isClosed = true
	c.mutex.Unlock()
	if c.left() > 0 { // if the release is lost, the lease ends by itself
		c.post("release_capacity", object{"resource_id": c.Resource, "id": c.lease.ID})
	}
}

// renew asks for a lease, and starts the timer for the next call.
func (c *Client) renew() {
	c.asking.Lock()
	defer c.asking.Unlock()
	if c.isClosed {
		return
	}
	wait, err := c.ask(0)
	if err == nil {
		c.tried, c.rounds, c.most = 0, 0, 60
	} else {
		log.Printf("doorman: %s: %v", c.url, err)
		wait = c.fail()
	}
	time.AfterFunc(seconds(wait), c.renew)
}

// fail goes to the next address. It returns how long to wait: only after all have failed (6).
func (c *Client) fail() float64 {
	c.URLs = append(c.URLs[1:], c.URLs[0])
	c.url, c.tried = c.URLs[0], c.tried+1
	if c.tried < len(c.URLs) {
		return 0
	}
	c.rounds = math.Min(c.rounds+1, 6)
	bound := math.Min(math.Exp2(c.rounds), math.Min(c.most, c.interval))
	wait := 1 + rand.Float64()*(math.Max(1, bound)-1)
	c.tried, c.most = 0, 60
	if left := c.left(); left > 0 {
		wait = math.Max(1, math.Min(wait, left/4))
	}
	return wait
}

// ask sends a request, and follows the master. It returns how many seconds to wait.
func (c *Client) ask(hops int) (float64, error) {
	item := object{"resource_id": c.Resource, "wants": c.Wants}
	sent, left, has := time.Now(), c.left(), c.lease
	if has.ExpiresIn = left; left > 0 {
		item["has"] = has // (3)
	}
	reply, err := c.post("get_capacity", item)
	if err != nil {
		return 0, err
	} else if reply.Mastership != nil { // (7)
		master := reply.Mastership["http_address"]
		isPlain := strings.HasPrefix(c.url, "https:") && !strings.HasPrefix(master, "https:")
		c.most = 4 // until a master answers
		if master == "" || isPlain || hops == 5 {
			return 0, errors.New("there is no master")
		}
		c.url = master
		return c.ask(hops + 1)
	} else if len(reply.Response) != 1 {
		return 0, errors.New("the response is not valid")
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if left > 0 && c.left() <= 0 {
		return 0, nil // ask again without the lease (2)
	}
	result := reply.Response[0]
	if result.SafeCapacity != nil {
		c.SafeCapacity = *result.SafeCapacity
	}
	if result.Gets == nil { // the last lease stays until its end
		log.Printf("doorman: %s: %s", c.Resource, result.Refused.Reason)
		return late(math.Max(1, result.Refused.RefreshInterval)), nil
	}
	c.lease, c.end = *result.Gets, sent.Add(seconds(result.Gets.ExpiresIn))
	c.interval = math.Min(c.lease.RefreshInterval, math.Max(1, c.lease.ExpiresIn/2)) // (5)
	if left > 0 && c.lease.Capacity < has.Capacity {
		c.cuts++ // confirm the smaller lease, so that others get the difference (4)
		return math.Min(c.cuts-1, 1), nil
	}
	c.cuts = 0
	return late(c.interval), nil
}

func (c *Client) post(method string, item object) (out answer, err error) {
	body, _ := json.Marshal(object{"client_id": c.id, "resource": []object{item}})
	reply, err := connection.Post(c.url+"/v1/"+method, "application/json", bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	defer reply.Body.Close()
	err = json.NewDecoder(reply.Body).Decode(&out)
	if reply.StatusCode != 200 {
		err = fmt.Errorf("status %s: %s", reply.Status, out.Error["message"])
	}
	return out, err
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
func late(wait float64) float64       { return wait * (1 + 0.05*rand.Float64()) }

// Uses as much as the server allows. Ten times a second, prints the time, the units that were used
// since the last line, the rate, and whether the rate is a lease.
func main() {
	wants, err := strconv.ParseFloat(os.Args[len(os.Args)-1], 64)
	if len(os.Args) != 4 || err != nil {
		log.Fatal("Usage: doorman URL[,URL...] RESOURCE WANTS")
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	client := &Client{URLs: strings.Split(os.Args[1], ","), Resource: os.Args[2], Wants: wants}
	client.Start()
	defer client.Close()
	sources, used := map[bool]string{true: "lease", false: "fallback"}, 0
	for tick := 1; len(signals) == 0; tick++ {
		time.Sleep(5 * time.Millisecond)
		for i := 0; i < 100 && client.TryUse(1); i++ {
			used++ // here is the work
		}
		if tick%20 == 0 {
			rate, isLease := client.Rate()
			now := float64(time.Now().UnixNano()) / 1e9
			fmt.Printf("%.3f %d %.3f %s\n", now, used, rate, sources[isLease])
			used = 0
		}
	}
}
