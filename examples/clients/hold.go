package doorman

// Hold is a client for one hold. Copy this file beside doorman.go.
//
//	hold := doorman.Hold{URLs: []string{"http://127.0.0.1:15050"}, Resource: "transcode",
//		Key: "acme", Units: 1, MaxWait: 30}
//	if hold.Acquire() {
//		... // work; stop when hold.Left() <= 0
//		hold.Release()
//	}
//
// A goroutine renews the hold. Any goroutine may call the methods. Numbers such as (H3) name the
// "Rules for a holder" of docs/protocol.md.

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

	secret "crypto/rand"
)

// Hold holds Units of one resource and key. OnGone may be nil. It is called once if the hold cannot
// be renewed. The units may still be used until Left is 0.
type Hold struct {
	URLs                    []string
	Resource, Key           string
	Units, MaxWait, MaxLife float64 // the last two in seconds; MaxLife 0: that of the limit
	OnGone                  func()

	sending            sync.Mutex // held while a renewal or a release is in flight
	mutex              sync.Mutex // guards the next lines
	client, master     string
	request            int
	grant              grant
	end                time.Time
	stopped            chan struct{} // closed when the hold is released
	isHeld, isReleased bool
}

type grant struct {
	ID        int64   `json:"id"`
	Waited    float64 `json:"waited"`
	ExpiresIn float64 `json:"expires_in"`
}

type holdAnswer struct {
	Mastership map[string]string
	Permit     []struct{ Hold *grant }
	Entry      []struct {
		Gone      bool
		Reason    string
		Amount    []float64
		ExpiresIn float64 `json:"expires_in"`
	}
}

// Left returns the seconds to the end of the hold. At 0 or less the units may not be used.
func (h *Hold) Left() float64 {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.left()
}

func (h *Hold) left() float64 {
	now := time.Now() // both clocks count, as in doorman.go
	if !h.isHeld || h.isReleased {
		return 0
	}
	return math.Min(h.end.Sub(now).Seconds(), h.end.Round(0).Sub(now.Round(0)).Seconds())
}

// Acquire waits up to MaxWait. It returns false if the hold is refused, or if Release is called.
func (h *Hold) Acquire() bool {
	h.mutex.Lock()
	if h.client == "" {
		var id [8]byte
		secret.Read(id[:])
		host, _ := os.Hostname()
		h.client, h.master = fmt.Sprintf("%s:%d:%x", host, os.Getpid(), id), h.URLs[0] // (H1)
	}
	h.request++
	h.grant, h.isHeld, h.isReleased, h.stopped = grant{}, false, false, make(chan struct{})
	stopped := h.stopped
	h.mutex.Unlock()
	giveUp, decided := time.Now().Add(seconds(h.MaxWait)), false
	for pause := false; !decided && (!pause || time.Now().Before(giveUp)); pause = true {
		if pause && !sleepUnless(stopped, 0.5+rand.Float64()/2) {
			break
		}
		decided = h.ask(math.Max(0, time.Until(giveUp).Seconds()))
	}
	h.mutex.Lock()
	isHeld, isPerhapsGranted := h.left() > 0, !decided || h.isHeld
	h.mutex.Unlock()
	if isHeld {
		go h.run(stopped)
	} else if isPerhapsGranted {
		h.Release() // (H6)
	}
	return isHeld
}

// Release gives the units back. Stop using them before. It also ends an Acquire that waits.
func (h *Hold) Release() {
	h.mutex.Lock()
	if h.stopped == nil {
		h.mutex.Unlock()
		return
	} else if !h.isReleased {
		close(h.stopped)
	}
	h.isReleased = true
	entry := object{"request_id": h.request}
	if h.isHeld {
		entry = object{"id": h.grant.ID}
	}
	h.mutex.Unlock()
	h.sending.Lock() // after a renewal that is under way
	defer h.sending.Unlock()
	h.everywhere("release", object{"entry": []object{entry}}, 5) // else the hold ends by itself
}

// ask asks for the hold. It returns whether a server has decided, or refuses to.
func (h *Hold) ask(wait float64) bool {
	permit := object{"request_id": h.request, "max_wait": wait,
		"item": []object{{"resource_id": h.Resource, "key": h.Key, "cost": h.Units}}}
	if h.MaxLife > 0 {
		permit["time_to_live"] = h.MaxLife
	}
	sent, answer := h.everywhere("acquire", object{"permit": []object{permit}}, wait+5) // (H2)
	if answer == nil || len(answer.Permit) != 1 {
		return answer != nil // refused
	}
	if hold := answer.Permit[0].Hold; hold != nil {
		h.mutex.Lock()
		defer h.mutex.Unlock()
		h.grant, h.isHeld = *hold, true
		h.end = sent.Add(seconds(hold.Waited/1.05 + hold.ExpiresIn)) // (H3)
	}
	return true
}

// isRefused returns whether the server has read the request, and refuses it. To repeat it is of no
// use.
func isRefused(code int) bool {
	return code >= 400 && code < 500 && code != http.StatusRequestTimeout &&
		code != http.StatusTooManyRequests
}

func (h *Hold) run(stopped chan struct{}) {
	life := h.grant.ExpiresIn
	item := []object{{"resource_id": h.Resource, "key": h.Key, "amount": h.Units}} // (H5)
	entry := object{"entry": []object{{"id": h.grant.ID, "item": item}}}
	for wait := life / 3; sleepUnless(stopped, math.Min(wait, h.Left())); { // (H4)
		h.sending.Lock()
		sent, answer := h.everywhere("renew", entry, math.Min(5, math.Max(0.1, h.Left()/4)))
		h.sending.Unlock()
		if answer != nil && len(answer.Entry) == 1 && answer.Entry[0].Reason != "" {
			answer = nil // MOVED: another node will know the hold
		}
		h.mutex.Lock()
		isAnswered := answer != nil && len(answer.Entry) == 1
		less := isAnswered && (len(answer.Entry[0].Amount) == 0 || answer.Entry[0].Amount[0] < h.Units)
		isOver := h.left() <= 0 || less || answer != nil && !isAnswered // (H7), or refused
		if isReleased := h.isReleased; isReleased || isOver {
			h.mutex.Unlock()
			if h.OnGone != nil && !isReleased {
				h.OnGone()
			}
			return
		}
		wait = life * (0.05 + 0.05*rand.Float64())
		if isAnswered {
			wait = life / 3
			if end := sent.Add(seconds(answer.Entry[0].ExpiresIn)); end.After(h.end) {
				h.end = end
			}
		}
		h.mutex.Unlock()
	}
}

// everywhere asks the last master, and then all addresses. It returns when the request was sent, and
// the answer, which is empty if the request is refused, or nil.
func (h *Hold) everywhere(method string, body object, timeout float64) (time.Time, *holdAnswer) {
	h.mutex.Lock()
	urls := append([]string{h.master}, h.URLs...)
	body["client_id"] = h.client
	h.mutex.Unlock()
	for _, url := range urls {
		sent, answer, err := h.post(url, method, body, timeout, 0)
		if err == nil {
			return sent, answer
		}
		log.Printf("doorman: %s: %v", url, err)
	}
	return time.Time{}, nil
}

// post sends a message, and follows the master.
func (h *Hold) post(url, method string, body object, timeout float64, hops int) (
	time.Time, *holdAnswer, error) {
	text, _ := json.Marshal(body)
	client, sent, answer := HTTP, time.Now(), new(holdAnswer)
	client.Timeout = seconds(timeout)
	reply, err := client.Post(url+"/v1/"+method, "application/json", bytes.NewReader(text))
	if err != nil {
		return sent, nil, err
	}
	defer reply.Body.Close()
	if reply.StatusCode != 200 {
		message, _ := io.ReadAll(reply.Body)
		if isRefused(reply.StatusCode) {
			log.Printf("doorman: %s: %s", url, message)
			return sent, answer, nil
		}
		return sent, nil, fmt.Errorf("%s: %s", reply.Status, message)
	} else if err := json.NewDecoder(reply.Body).Decode(answer); err != nil {
		return sent, nil, err
	} else if answer.Mastership == nil {
		h.mutex.Lock()
		defer h.mutex.Unlock()
		h.master = url
		return sent, answer, nil
	}
	master := answer.Mastership["http_address"]
	isPlain := strings.HasPrefix(url, "https:") && !strings.HasPrefix(master, "https:")
	if master == "" || hops == 5 || isPlain {
		return sent, nil, errors.New("there is no master")
	}
	return h.post(master, method, body, timeout, hops+1)
}

// sleepUnless returns false if the hold is released meanwhile.
func sleepUnless(stopped chan struct{}, wait float64) bool {
	select {
	case <-stopped:
		return false
	case <-time.After(seconds(math.Max(0, wait))):
		return true
	}
}
