package cores

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Never is a time that does not come.
const Never time.Duration = 1 << 62

const (
	amountMax    = 1e15
	durationMax  = 1e8 * time.Second
	grainsOfUnit = 4096 // limiters and servers count in 1/4096 of a unit
	idBytesMax   = 256
	redirectsMax = 5
	integerMax   = 1 << 53
)

func secondsOf(d time.Duration) float64 { return float64(d) / 1e9 }

func durationOf(seconds float64) time.Duration { return time.Duration(math.Round(seconds * 1e9)) }

func isNumber(value float64) bool { return !math.IsNaN(value) && !math.IsInf(value, 0) }

func isAmount(units float64) bool { return units >= 0 && units <= amountMax }

func earlier(a, b time.Duration) time.Duration {
	if b < a {
		return b
	}
	return a
}

func later(a, b time.Duration) time.Duration {
	if b > a {
		return b
	}
	return a
}

// Request is a request that a core wants to be sent: a POST of Message to Address/v1/Method.
type Request struct {
	Address string
	Method  string
	Message map[string]any
	Number  int
	// Timeout is how long to wait. The core itself notices when it has passed.
	Timeout time.Duration
	// Lane is that of a permit that may wait in the queue of a server; -1: none.
	Lane int
}

// ---- what the application gives

func checkID(name, value string, mayBeEmpty bool) error {
	least := 1
	if mayBeEmpty {
		least = 0
	}
	if len(value) < least || len(value) > idBytesMax || !utf8.ValidString(value) ||
		strings.IndexFunc(value, unicode.IsControl) >= 0 {
		return fmt.Errorf("%s: must be %d to %d bytes of UTF-8 without control characters",
			name, least, idBytesMax)
	}
	return nil
}

// CheckKey returns an error if a key of an Item is not valid. It must have at most 256 bytes of
// UTF-8, and no control characters.
func CheckKey(key string) error { return checkID("key", key, true) }

func checkAmount(name string, value float64) error {
	if !isAmount(value) {
		return fmt.Errorf("%s: must be a number from 0 to 1e15", name)
	}
	return nil
}

func checkDuration(name string, value, least time.Duration) error {
	if value < least || value > durationMax {
		return fmt.Errorf("%s: must be from %v to 1e8 seconds", name, least)
	}
	return nil
}

func checkInteger(name string, value, least, most int64) error {
	if value < least || value > most {
		return fmt.Errorf("%s: must be an integer from %d to %d", name, least, most)
	}
	return nil
}

func checkOneOf(name, value string, values ...string) error {
	for _, known := range values {
		if value == known {
			return nil
		}
	}
	return fmt.Errorf("%s: must be %s", name, strings.Join(values, " or "))
}

// firstError returns the first error that is not nil.
func firstError(all ...error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

var (
	addressForm = regexp.MustCompile(`(?i)^https?://([^/\s]+)(/\S*)?$`)
	portForm    = regexp.MustCompile(`:([^:\]]*)$`)
)

func checkAddress(address string) error {
	if err := checkID("address", address, false); err != nil {
		return err
	}
	parts := addressForm.FindStringSubmatch(address)
	if parts == nil {
		return fmt.Errorf("address: must be like http://HOST:PORT or https://HOST:PORT, not %s",
			address)
	}
	if port := portForm.FindStringSubmatch(parts[1]); port != nil {
		number, err := strconv.ParseUint(port[1], 10, 16)
		if err != nil || number == 0 {
			return fmt.Errorf("address: the port must be a number from 1 to 65535, not %s", address)
		}
	}
	if parsed, err := url.Parse(address); err != nil || parsed.Hostname() == "" {
		return fmt.Errorf("address: is no URL with a host: %s", address)
	}
	return nil
}

// ---- what a server sends

// fault has the first thing that is wrong with a response.
type fault struct {
	err     error
	refused bool // a server has answered INVALID_ARGUMENT: the message is wrong, the server works
}

// reader reads an object of a response. A field with a wrong type or value is noted in the fault,
// and reads as the zero value. Unknown fields are ignored.
type reader struct {
	value map[string]any
	path  string
	fault *fault
}

func newReader(value any, path string, fault *fault) reader {
	object, ok := value.(map[string]any)
	r := reader{object, path, fault}
	if !ok {
		r.note(fmt.Errorf("%s: must be an object", path))
	}
	return r
}

func (r reader) note(err error) {
	if r.fault.err == nil {
		r.fault.err = err
	}
}

func (r reader) fail(key, rule string) { r.note(fmt.Errorf("%s.%s: %s", r.path, key, rule)) }

func (r reader) has(key string) bool {
	_, ok := r.value[key]
	return ok
}

// number reads a number within bounds. With mayLack, an absent number is 0.
func (r reader) number(key string, least, most float64, mayLack bool, rule string) float64 {
	if mayLack && !r.has(key) {
		return 0
	}
	number, ok := r.value[key].(float64)
	if !ok || !(number >= least && number <= most) {
		r.fail(key, rule)
		return 0
	}
	return number
}

func (r reader) amount(key string, mayLack bool) float64 {
	return r.number(key, 0, amountMax, mayLack, "must be an amount")
}

func (r reader) duration(key string, mayLack bool) time.Duration {
	return durationOf(r.number(key, 0, 1e8, mayLack, "must be a number of seconds"))
}

func (r reader) integer(key string, most int64) int64 {
	number := r.number(key, 0, float64(most), false, "must be an integer")
	if number != math.Trunc(number) {
		r.fail(key, "must be an integer")
		return 0
	}
	return int64(number)
}

func (r reader) text(key string, mayLack bool) string {
	if mayLack && !r.has(key) {
		return ""
	}
	text, ok := r.value[key].(string)
	if !ok {
		r.fail(key, "must be a string")
	}
	return text
}

func (r reader) flag(key string) bool {
	if !r.has(key) {
		return false
	}
	flag, ok := r.value[key].(bool)
	if !ok {
		r.fail(key, "must be true or false")
	}
	return flag
}

// list reads a list. length: how many elements it must have; -1: any number.
func (r reader) list(key string, length int) []any {
	list, ok := r.value[key].([]any)
	if !ok {
		r.fail(key, "must be a list")
	} else if length >= 0 && len(list) != length {
		r.fail(key, fmt.Sprintf("must have %d elements", length))
		return nil
	}
	return list
}

func (r reader) object(key string) reader {
	return newReader(r.value[key], r.path+"."+key, r.fault)
}

// objects reads a list of objects.
func (r reader) objects(key string, length int, path string) []reader {
	var all []reader
	for _, value := range r.list(key, length) {
		all = append(all, newReader(value, path, r.fault))
	}
	return all
}

// readBody returns the content of a response. An error of the server is a fault.
func readBody(body any, status int) reader {
	if _, ok := body.(map[string]any); !ok {
		return reader{fault: &fault{err: fmt.Errorf(
			"the status is %d, and the body is no object of JSON", status)}}
	}
	r := newReader(body, "response", &fault{})
	if r.has("error") {
		problem := r.object("error")
		code, message := problem.text("code", true), problem.text("message", true)
		r.note(fmt.Errorf("%s: %s", code, message))
		r.fault.refused = code == "INVALID_ARGUMENT"
	}
	if status < 200 || status >= 300 {
		r.note(fmt.Errorf("the status is %d", status))
	}
	return r
}

// ---- addresses

func isTLS(address string) bool { return strings.HasPrefix(strings.ToLower(address), "https:") }

// addresses are those of a node, and the master that one of them has named (K3).
type addresses struct {
	own       []string
	index     int
	redirect  string
	redirects int // in a row
}

func newAddresses(given []string) (addresses, error) {
	if len(given) < 1 || len(given) > 16 {
		return addresses{}, errors.New("addresses: must be 1 to 16")
	}
	var own []string
	for _, address := range given {
		if err := checkAddress(address); err != nil {
			return addresses{}, err
		}
		own = append(own, strings.TrimRight(address, "/"))
	}
	return addresses{own: own}, nil
}

func (a *addresses) current() string {
	if a.redirect != "" {
		return a.redirect
	}
	return a.own[a.index]
}

// follow goes to the master that a response has named. It returns false if it must not.
func (a *addresses) follow(master any) bool {
	address, ok := master.(string)
	if !ok || a.redirects >= redirectsMax || checkAddress(address) != nil {
		return false
	}
	if isTLS(a.current()) && !isTLS(address) {
		return false
	}
	a.redirects++
	a.redirect = strings.TrimRight(address, "/")
	return true
}

// advance goes to the next own address.
func (a *addresses) advance() {
	a.redirect = ""
	a.redirects = 0
	a.index = (a.index + 1) % len(a.own)
}
