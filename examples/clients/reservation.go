package doorman

// Reservations is a client for reservations. Copy this file beside doorman.go and hold.go.
//
//	client := doorman.Reservations{URLs: []string{"http://127.0.0.1:15050"}}
//	reservation := client.Reserve("llm/tokens", "acme", 4000)
//	if reservation.Granted {
//		defer reservation.Settle(reservation.Cost) // as reserved; the first Settle counts
//		reservation.Settle(used)                   // work, and say what it has really cost
//	}
//	client.Close()
//
// Any goroutine may call the methods. Numbers such as (P27) name the rules of doorman_permits.h.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	secret "crypto/rand"
)

const (
	repeatTime = 45 * time.Second // a server remembers a settlement for a minute (P27)
	waitingMax = 10000            // settles that wait; others are lost
)

// Reservations asks the servers at URLs. Within and Timeout are in seconds; 0: 60 and 1. Without a
// server, Reserve grants, except if FailClosed is true. What it grants is charged later, if a server
// takes it.
type Reservations struct {
	URLs            []string
	Within, Timeout float64
	FailClosed      bool

	mutex          sync.Mutex // guards the next lines
	client, master string
	last           int64
	waiting, lost  int
	stopped        chan struct{} // closed by Close
	settles        sync.WaitGroup
}

// Reservation says in Granted whether the work may be done. Cost is what was reserved.
type Reservation struct {
	Granted bool
	Cost    float64

	client        *Reservations
	number        int64
	resource, key string
	once          sync.Once
}

type reservationAnswer struct {
	Mastership map[string]string
	Permit     []struct {
		Decision    string
		Reservation *struct{}
	}
	Entry []struct{ Reason string }
}

// Reserve charges the most that the work may cost.
func (c *Reservations) Reserve(resource, key string, cost float64) *Reservation {
	c.mutex.Lock()
	c.start()
	c.last++
	r := &Reservation{client: c, number: c.last, resource: resource, key: key, Cost: cost}
	c.mutex.Unlock()
	answer := c.everywhere("acquire", object{"permit": []object{{"request_id": r.number,
		"settle_within": c.Within, "item": r.items(cost)}}})
	isDecided := answer != nil && len(answer.Permit) == 1
	isReserved := isDecided && answer.Permit[0].Reservation != nil
	r.Granted = !isDecided && !c.FailClosed || isDecided && answer.Permit[0].Decision == "GRANTED"
	if !isDecided && c.FailClosed {
		r.Settle(0) // a server may have charged it
	} else if !r.Granted || isDecided && !isReserved {
		r.once.Do(func() {}) // there is nothing to settle
	}
	return r
}

// Settle says what the work has cost. It does not wait. Later calls have no effect.
func (r *Reservation) Settle(cost float64) {
	r.once.Do(func() {
		c := r.client
		entry := object{"request_id": r.number, "item": r.items(cost)}
		c.mutex.Lock()
		defer c.mutex.Unlock()
		if c.waiting >= waitingMax {
			c.lose(entry)
			return
		}
		c.waiting++
		c.settles.Add(1)
		go c.send(entry)
	})
}

func (r *Reservation) items(cost float64) []object {
	return []object{{"resource_id": r.resource, "key": r.key, "cost": cost}}
}

// Close sends what is left, once. No other method may be called after it.
func (c *Reservations) Close() {
	c.mutex.Lock()
	c.start()
	close(c.stopped)
	c.mutex.Unlock()
	c.settles.Wait()
}

// Lost returns how many settles no server has counted.
func (c *Reservations) Lost() int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.lost
}

// start fills in what is not given. The mutex is locked.
func (c *Reservations) start() {
	if c.client != "" {
		return
	}
	var id [8]byte
	secret.Read(id[:])
	host, _ := os.Hostname()
	c.client, c.master = fmt.Sprintf("%s:%d:%x", host, os.Getpid(), id), c.URLs[0]
	c.stopped = make(chan struct{})
	if c.Within == 0 {
		c.Within = 60
	}
	if c.Timeout == 0 {
		c.Timeout = 1
	}
}

// lose counts a settle that is given up. The mutex is locked.
func (c *Reservations) lose(entry object) {
	c.lost++
	log.Printf("doorman: nobody has counted %v", entry)
}

// send sends a settle until a server has answered. It is repeated for less than a server remembers
// it.
func (c *Reservations) send(entry object) {
	defer c.settles.Done()
	reason, end := "LEARNING", time.Now().Add(repeatTime-seconds(c.Timeout+1))
	for again := true; again; again = (reason == "LEARNING" || reason == "MOVED") &&
		time.Now().Before(end) && sleepUnless(c.stopped, 1) {
		answer := c.everywhere("settle", object{"entry": []object{entry}})
		if answer != nil && len(answer.Entry) == 1 {
			reason = answer.Entry[0].Reason
		} else if answer != nil {
			reason = "REFUSED"
		}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.waiting--
	if reason != "" {
		c.lose(entry)
	}
}

// everywhere asks the last master, and then all addresses. It returns the answer, which is empty if
// the request is refused, or nil.
func (c *Reservations) everywhere(method string, body object) *reservationAnswer {
	c.mutex.Lock()
	urls := append([]string{c.master}, c.URLs...)
	body["client_id"] = c.client
	c.mutex.Unlock()
	for _, url := range urls {
		answer, err := c.post(url, method, body, 0)
		if err == nil {
			return answer
		}
		log.Printf("doorman: %s: %v", url, err)
	}
	return nil
}

// post sends a message, and follows the master.
func (c *Reservations) post(url, method string, body object, hops int) (*reservationAnswer, error) {
	text, _ := json.Marshal(body)
	client, answer := HTTP, new(reservationAnswer)
	client.Timeout = seconds(c.Timeout)
	reply, err := client.Post(url+"/v1/"+method, "application/json", bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	if reply.StatusCode != 200 {
		message, _ := io.ReadAll(reply.Body)
		if isRefused(reply.StatusCode) {
			log.Printf("doorman: %s: %s", url, message)
			return answer, nil
		}
		return nil, fmt.Errorf("%s: %s", reply.Status, message)
	} else if err := json.NewDecoder(reply.Body).Decode(answer); err != nil {
		return nil, err
	} else if answer.Mastership == nil {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.master = url
		return answer, nil
	}
	master := answer.Mastership["http_address"]
	isPlain := strings.HasPrefix(url, "https:") && !strings.HasPrefix(master, "https:")
	if master == "" || hops == 5 || isPlain {
		return nil, errors.New("there is no master")
	}
	return c.post(master, method, body, hops+1)
}
