// Package doorman is a client of Doorman for one rate, over HTTP, without other packages.
//
//	client := doorman.Client{URLs: []string{"http://127.0.0.1:15050"}, Resource: "db", Wants: 50}
//	client.Start()
//	if client.TryUse(1) { ... } // do one unit of work
//	client.Close()
//
// Copy this file into your program. A timer renews the lease. Any goroutine may call the methods.
// Numbers such as (4) name the "Rules for a client" of docs/protocol.md.
package doorman

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"math/rand"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// HTTP sends the requests. A program can give it a Transport that adds a token.
var HTTP = http.Client{
	Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// Client holds the lease of one resource. Wants and Safe are units per second. Without a lease the
// client uses Safe, which a server can change. -1 means unlimited.
type Client struct {
	URLs        []string
	Resource    string
	Wants, Safe float64

	asking                sync.Mutex // held while a request is in flight (2)
	id, master            string
	pause, interval, cuts float64    // pause and interval bound the wait after failures (6)
	mutex                 sync.Mutex // guards Safe and the next lines
	lease                 lease
	end, paid             time.Time // the rate has paid for the units used until `paid`
	isClosed              bool
}

type lease struct { // or a refusal, which has only the last field
	ID              int64   `json:"id"`
	Node            string  `json:"node"`
	Capacity        float64 `json:"capacity"`
	ExpiresIn       float64 `json:"expires_in"`
	RefreshInterval float64 `json:"refresh_interval"`
}

type object map[string]any

// Start asks for the first lease. Do not change the exported fields later.
func (c *Client) Start() {
	host, _ := os.Hostname()
	rand.Seed(time.Now().UnixNano())
	c.id = fmt.Sprintf("%s:%d:%x", host, os.Getpid(), rand.Uint64())
	c.master, c.pause, c.interval, c.paid = c.URLs[0], 2, 60, time.Now()
	go c.renew()
}

// Rate returns how many units the client may use in a second now, and whether this is a lease.
func (c *Client) Rate() (rate float64, isLease bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.rate(), c.left() > 0
}

func (c *Client) rate() float64 {
	if c.left() > 0 {
		return c.lease.Capacity // also if it is 0 (4)
	} else if c.Safe < 0 {
		return 1e15
	}
	return c.Safe // (8)
}

// left returns the seconds to the end of the lease. Both clocks of a Time count, because the
// monotonic one stops while the machine is suspended (1).
func (c *Client) left() float64 {
	now := time.Now()
	return math.Min(c.end.Sub(now).Seconds(), c.end.Round(0).Sub(now.Round(0)).Seconds())
}

// TryUse takes n units and returns true, or returns false if the rate does not allow them now. The
// rate saves up to 0.1 s, or the time of these n units if that is longer.
func (c *Client) TryUse(n float64) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	cost := n / c.rate() // in seconds, as what is saved
	saved := math.Min(c.saved(), math.Max(0.1, cost))
	if c.isClosed || c.rate() <= 0 || saved < cost {
		return false
	}
	c.paid = time.Now().Add(seconds(cost - saved))
	return true
}

func (c *Client) saved() float64 {
	if c.left() <= 0 && c.paid.Before(c.end) {
		return time.Since(c.end).Seconds()
	}
	return time.Since(c.paid).Seconds()
}

// Close stops using the lease, and gives it back. If this fails, the lease ends by itself.
func (c *Client) Close() {
	c.asking.Lock() // after the response in flight (9)
	defer c.asking.Unlock()
	c.mutex.Lock()
	c.isClosed = true
	c.mutex.Unlock()
	if c.left() > 0 {
		c.post(c.master, "release_capacity", object{"id": c.lease.ID}, &struct{}{})
	}
}

// renew asks the last master, and then all addresses. It starts the timer for the next call.
func (c *Client) renew() {
	c.asking.Lock()
	defer c.asking.Unlock()
	for _, url := range append([]string{c.master}, c.URLs...) {
		if c.isClosed {
			return
		}
		wait, err := c.ask(url, 0)
		if err == nil {
			time.AfterFunc(seconds(wait), c.renew)
			return
		}
		log.Printf("doorman: %s: %v", url, err)
	}
	longest := math.Min(c.pause, c.interval)
	if left := c.left(); left > 0 {
		longest = math.Min(longest, left/4)
	}
	c.pause = math.Min(2*c.pause, 60)
	time.AfterFunc(seconds(1+rand.Float64()*math.Max(0, longest-1)), c.renew) // (6)
}

// ask asks for a lease, and follows the master. It returns how many seconds to wait.
func (c *Client) ask(url string, hops int) (float64, error) {
	entry, sent, left, has := object{"wants": c.Wants}, time.Now(), c.left(), c.lease
	if has.ExpiresIn = left; left > 0 {
		entry["has"] = has // (3)
	}
	var answer struct {
		Mastership map[string]string
		Response   []struct {
			Gets         *lease
			Refused      lease
			SafeCapacity *float64 `json:"safe_capacity"`
		}
	}
	if err := c.post(url, "get_capacity", entry, &answer); err != nil {
		return 0, err
	} else if answer.Mastership != nil { // (7)
		master := answer.Mastership["http_address"]
		isPlain := strings.HasPrefix(url, "https:") && !strings.HasPrefix(master, "https:")
		if master == "" || hops == 5 || isPlain {
			c.pause = math.Min(c.pause, 4)
			return 0, errors.New("there is no master")
		}
		return c.ask(master, hops+1)
	} else if left > 0 && c.left() <= 0 {
		return 0, errors.New("the response came too late") // (2)
	} else if len(answer.Response) != 1 {
		return 0, errors.New("the response is not valid")
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	units, result := c.saved()*c.rate(), answer.Response[0]
	if c.master, c.pause = url, 2; result.SafeCapacity != nil {
		c.Safe = *result.SafeCapacity
	}
	if result.Gets != nil {
		c.lease, c.end = *result.Gets, sent.Add(seconds(result.Gets.ExpiresIn))
	}
	if c.paid = time.Now(); c.rate() > 0 { // the same units are saved
		c.paid = c.paid.Add(-seconds(math.Min(units/c.rate(), 3600)))
	}
	if result.Gets == nil { // the lease stays until its end
		return late(math.Max(1, result.Refused.RefreshInterval)), nil
	}
	c.interval = math.Min(c.lease.RefreshInterval, math.Max(1, c.lease.ExpiresIn/2)) // (5)
	if left > 0 && c.lease.Capacity < has.Capacity {
		c.cuts++ // confirm the smaller lease, so that others get the difference (4)
		return math.Min(c.cuts-1, 1), nil
	}
	c.cuts = 0
	return late(c.interval), nil
}

func (c *Client) post(url, method string, entry object, out any) error {
	entry["resource_id"] = c.Resource
	body, _ := json.Marshal(object{"client_id": c.id, "resource": []object{entry}})
	reply, err := HTTP.Post(url+"/v1/"+method, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if reply.StatusCode != 200 {
		text, _ := io.ReadAll(reply.Body)
		return fmt.Errorf("%s: %s", reply.Status, text)
	}
	return json.NewDecoder(reply.Body).Decode(out)
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
func late(wait float64) float64       { return wait * (1 + 0.05*rand.Float64()) }
