package doorman

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"doorman.example/doorman/cores"
)

const headerIntegerMax = 999999999999999 // of a structured field (RFC 9651, 3.3.1)

// Middleware asks for a permit for each request of a server of net/http. A refused request gets a
// status and Retry-After, and responses have the headers RateLimit-Policy and RateLimit. If no
// server can decide, the fallback of the client does, and there are no such headers. A request whose
// context ends before gets the status 503.
type Middleware struct {
	Client *Client
	// Resource is the resource_id of all requests, unless ResourceOf is given.
	Resource string
	// ResourceOf returns the resource_id of a request. "": the request is not limited.
	ResourceOf func(*http.Request) string
	// Key returns on whose behalf a request is. The default is always "". See KeyByAddress. A key
	// that a permit cannot have, such as one of more than 256 bytes, is replaced by its hash.
	Key func(*http.Request) string
	// Cost returns the units of a request. The default is 1.
	Cost func(*http.Request) float64
	// Timeout is when the fallback decides. The default is 1 s.
	Timeout time.Duration
	// RefuseStatus is 429 (the default), 403 or 503.
	RefuseStatus int
}

type decisionKey struct{}

// DecisionOf returns the decision on a request that a Middleware has let pass; nil: there is none.
func DecisionOf(request *http.Request) *Acquired {
	decision, _ := request.Context().Value(decisionKey{}).(*Acquired)
	return decision
}

// KeyByAddress returns the address of the peer, without its port. Behind a proxy, take the key from
// what the proxy says instead.
func KeyByAddress(request *http.Request) string {
	host, _, err := net.SplitHostPort(request.RemoteAddr)
	if err != nil {
		return request.RemoteAddr
	}
	return host
}

// Wrap returns a handler that calls next for the requests that are granted. It panics if
// RefuseStatus is not one of the three.
func (m Middleware) Wrap(next http.Handler) http.Handler {
	if m.RefuseStatus == 0 {
		m.RefuseStatus = http.StatusTooManyRequests
	}
	if m.RefuseStatus != 429 && m.RefuseStatus != 403 && m.RefuseStatus != 503 {
		panic("doorman: RefuseStatus: must be 429, 403 or 503")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		item := m.itemOf(request)
		if item.Resource == "" {
			next.ServeHTTP(w, request)
			return
		}
		options := AcquireOptions{Timeout: m.Timeout, Detail: true}
		decision, err := m.Client.AcquireItems(request.Context(), options, item)
		if request.Context().Err() != nil { // the peer has gone, or the application waits no longer
			http.Error(w, "the request has no decision in time", http.StatusServiceUnavailable)
			return
		}
		if err != nil {
			m.Client.engine.warn(fmt.Sprintf("middleware: %v", err))
			http.Error(w, "the request has no decision", http.StatusInternalServerError)
			return
		}
		SetHeaders(w.Header(), decision)
		if !decision.Granted {
			refuse(w, decision, m.RefuseStatus)
			return
		}
		ctx := context.WithValue(request.Context(), decisionKey{}, decision)
		next.ServeHTTP(w, request.WithContext(ctx))
	})
}

// keyOf returns the key of a request. One that a permit cannot have is replaced by its hash: what
// anybody can put into a header must be limited, and not end in an error.
func keyOf(key string) string {
	if cores.CheckKey(key) == nil {
		return key
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key)))
}

func (m *Middleware) itemOf(request *http.Request) Item {
	item := Item{Resource: m.Resource}
	if m.ResourceOf != nil {
		item.Resource = m.ResourceOf(request)
	}
	if m.Key != nil {
		item.Key = keyOf(m.Key(request))
	}
	if m.Cost != nil {
		item.Cost = m.Cost(request)
		item.Look = item.Cost == 0
	}
	return item
}

func refuse(w http.ResponseWriter, decision *Acquired, status int) {
	body := map[string]string{"decision": "REFUSED"}
	if decision.Reason != "" {
		body["reason"] = decision.Reason
	}
	if decision.Limit != "" {
		body["limit"] = decision.Limit
	}
	text, _ := json.Marshal(body) // texts always have a form in JSON
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the peer may have gone
}

// quote returns a name as a structured field has it: only printable characters of ASCII.
func quote(name string) string {
	var out strings.Builder
	out.WriteByte('"')
	for _, char := range []byte(name) {
		switch {
		case char == '"' || char == '\\':
			out.WriteByte('\\')
			out.WriteByte(char)
		case char >= ' ' && char <= '~':
			out.WriteByte(char)
		default:
			fmt.Fprintf(&out, "%%%02X", char)
		}
	}
	out.WriteByte('"')
	return out.String()
}

func headerInteger(units float64) int64 {
	return int64(math.Min(math.Max(units, 0), headerIntegerMax))
}

func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// SetHeaders sets RateLimit-Policy, RateLimit and Retry-After out of a decision with Detail. A
// decision without a server has only Retry-After, or none.
func SetHeaders(header http.Header, decision *Acquired) {
	reset := wholeSeconds(decision.ResetAfter)
	if !decision.Granted && decision.HasRetryAfter {
		reset = wholeSeconds(decision.RetryAfter)
		if reset < 1 {
			reset = 1
		}
		header.Set("Retry-After", strconv.FormatInt(reset, 10))
	}
	if decision.Limit == "" || decision.Quota <= 0 {
		return
	}
	name, window := quote(decision.Limit), ""
	if decision.Window > 0 {
		window = fmt.Sprintf(";w=%d", wholeSeconds(decision.Window))
	}
	header.Set("RateLimit-Policy",
		fmt.Sprintf("%s;q=%d%s", name, headerInteger(decision.Quota), window))
	header.Set("RateLimit",
		fmt.Sprintf("%s;r=%d;t=%d", name, headerInteger(decision.Remaining), reset))
}
