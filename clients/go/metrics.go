package doorman

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

type metric struct {
	name, kind, about string
	value             float64
}

func permitMetrics(counts Counts) []metric {
	counter := func(name, about string, value float64) metric {
		return metric{"doorman_client_permits_" + name, "counter", about, value}
	}
	gauge := func(name, about string, value float64) metric {
		return metric{"doorman_client_permits_" + name, "gauge", about, value}
	}
	pausing := 0.0
	if counts.IsPausing {
		pausing = 1
	}
	return []metric{
		counter("granted", "Permits that servers have granted.", float64(counts.Granted)),
		counter("refused", "Permits that servers have refused.", float64(counts.Refused)),
		counter("refused_locally", "Permits refused because a server has refused the same.",
			float64(counts.RefusedLocally)),
		counter("prefetch_granted", "Permits granted out of units that were taken ahead.",
			float64(counts.PrefetchGranted)),
		counter("fallback_granted", "Permits that the fallback has granted.",
			float64(counts.FallbackGranted)),
		counter("fallback_refused", "Permits that the fallback has refused.",
			float64(counts.FallbackRefused)),
		counter("bypassed", "Refusals that the kill switch or shadow has prevented.",
			float64(counts.Bypassed)),
		counter("timed_out", "Permits without a decision within their timeout.",
			float64(counts.TimedOut)),
		counter("reported", "Reports that servers have answered.", float64(counts.Reported)),
		counter("lost", "Reports that were given up.", float64(counts.Lost)),
		counter("uncharged", "Units of reports that did not fit into a limit.", counts.Uncharged),
		counter("settled", "Settles that servers have counted.", float64(counts.Settled)),
		counter("unsettled", "Settles that were refused or given up.", float64(counts.Unsettled)),
		counter("messages", "Messages on permits that were sent.", float64(counts.Messages)),
		counter("failures", "Messages on permits that have failed.", float64(counts.Failures)),
		counter("pauses", "How often the breaker has opened.", float64(counts.Pauses)),
		counter("holds_lost", "Holds that ended or were gone before their release.",
			float64(counts.HoldsLost)),
		counter("moved", "Calls that were sent again, because their shard moved.",
			float64(counts.Moved)),
		gauge("waiting", "Permits, reports and settles without a result.", float64(counts.Waiting)),
		gauge("holds", "Holds that the client keeps, asks for, or has to release.",
			float64(counts.Holds)),
		gauge("is_pausing", "1: the breaker is open.", pausing),
	}
}

var resourceMetrics = []struct {
	name, kind, about string
	value             func(*ResourceInfo) float64
}{
	{"capacity", "gauge", "The capacity in force; -1: unlimited.",
		func(info *ResourceInfo) float64 { return info.Capacity }},
	{"wants", "gauge", "What the resource wants.",
		func(info *ResourceInfo) float64 { return info.Wants }},
	{"in_use", "gauge", "Units of a gauge in use.",
		func(info *ResourceInfo) float64 { return info.InUse }},
	{"leased", "gauge", "1: there is a lease. 0: the fallback is in force.",
		func(info *ResourceInfo) float64 {
			if info.Leased {
				return 1
			}
			return 0
		}},
	{"allowed", "counter", "Units that were allowed.",
		func(info *ResourceInfo) float64 { return info.Allowed }},
	{"refused", "counter", "Units that were refused.",
		func(info *ResourceInfo) float64 { return info.Refused }},
	{"excess", "counter", "Units allowed only because of shadow mode or the kill switch.",
		func(info *ResourceInfo) float64 { return info.Excess }},
}

var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// family writes the head of a metric. It returns the full name.
func family(out io.Writer, name, kind, about string) string {
	if kind == "counter" {
		name += "_total"
	}
	fmt.Fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, about, name, kind)
	return name
}

func number(value float64) string { return strconv.FormatFloat(value, 'g', -1, 64) }

// Metrics returns all counters of the client in the text format of Prometheus.
func (c *Client) Metrics() string {
	e := c.engine
	e.mutex.Lock()
	now := e.clock.now()
	metrics := permitMetrics(e.permits.Read())
	metrics = append(metrics, metric{"doorman_client_lease_failures", "counter",
		"Requests for leases without a useful response.", float64(e.leases.Failures())})
	var infos []ResourceInfo
	for _, resource := range e.leases.Resources() {
		infos = append(infos, e.leases.Read(resource, now))
	}
	e.mutex.Unlock()
	var out strings.Builder
	for _, m := range metrics {
		fmt.Fprintf(&out, "%s %s\n", family(&out, m.name, m.kind, m.about), number(m.value))
	}
	for _, m := range resourceMetrics {
		if len(infos) == 0 {
			break
		}
		name := family(&out, "doorman_client_resource_"+m.name, m.kind, m.about)
		for i := range infos {
			fmt.Fprintf(&out, "%s{resource=\"%s\"} %s\n", name,
				escaper.Replace(infos[i].ResourceID), number(m.value(&infos[i])))
		}
	}
	return out.String()
}

// MetricsHandler returns a handler that answers with Metrics.
func (c *Client) MetricsHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = io.WriteString(w, c.Metrics()) // the caller may have gone
	})
}
