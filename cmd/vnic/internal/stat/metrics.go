package stat

import (
	"fmt"
	"net/http"
	"strconv"

	"vnic.dev/vnic/cmd/vnic/internal/httpserver"
)

// The metrics. Each is made from a Snapshot when it is asked for.
var (
	descPort  = desc("port_info", "What a port is.", "port", "kind", "mac")
	descSplit = desc("queue_split", "Whether a receive queue splits headers off.", "port", "queue")

	descLinkPackets  = desc("link_packets_total", "Packets of a port on the wire.", "port", "direction")
	descLinkSegments = desc("link_segments_total", "Packets of a port on the wire, counted as packets of the wire's size.",
		"port", "direction")
	descLinkBytes = desc("link_bytes_total", "Bytes of a port on the wire.", "port", "direction")
	descLinkDrops = desc("link_drops_total", "Packets dropped on the way from or to a port.", "port", "reason")
	descBusy      = desc("link_busy_total", "Times that a port had no buffers.", "port")
	descUnsplit   = desc("unsplit_frames_total", "Frames that a queue was to split, and that could not be.", "port")
	descLost      = desc("lost_replies_total", "Answers of the control channel that did not reach the guest.", "port")
	descMerged    = desc("coalesced_frames_total", "Frames that a guest got as part of a GSO packet made of several.",
		"port")
	descMerges  = desc("coalesced_packets_total", "GSO packets made of several frames for a guest.", "port")
	descRefused = desc("gateway_refused_total",
		"Flows, questions and datagrams of guests beyond the gateway's bounds.", "port")
	descEvicted = desc("gateway_evicted_total",
		"Flows, questions and datagrams that the gateway ended to make room for a guest with fewer of them.", "port")
	descUnreached = desc("gateway_unreached_total",
		"Flows whose other end did not answer, and connections that a guest asked for and did not confirm.", "port")
	descUDPLost = desc("gateway_lost_datagrams_total",
		"Datagrams for which a socket of the host, or a guest, had no room.", "port")
	descDenied = desc("gateway_denied_total", "Flows and questions of guests that the gateway's policy refuses.",
		"port", "rule")
	descFrontend = desc("frontend_memory_bytes", "Bytes of host memory that a frontend's shared memory occupies.", "port")
	descRules    = desc("flow_rules", "Flow rules that are set.", "port")

	descMemory     = desc("gpu_memory_bytes", "Memory of a GPU.", "port", "gpu")
	descRegistered = desc("gpu_registered_bytes", "Memory of a GPU that a guest has registered as buffers.", "port", "gpu")
)

// Links of a lab. Others whose names begin with link are of ports' wires, and older.
var (
	descLabPayload = desc("lab_link_payload_bytes_total",
		"Payload bytes that a link of the lab or a memory carried, each as often as it crossed it.", "link")
	descLabBytes = desc("lab_link_bytes_total",
		"Bytes that a link of the lab or a memory carried, with headers, rings and what links add to packets.", "link")
	descLabBusy = desc("lab_link_busy_seconds_total", "Time for which a link of the lab or a memory was taken.", "link")
	descLabRate = desc("lab_link_rate_bytes",
		"Bytes a second of a link of the lab or a memory that the lab file says, whatever the scale.", "link")
	descLabScale = desc("lab_scale", "How many times slower than their rates links of the lab are; 0: they are not slow.")
)

var descSandbox = desc("sandbox_refused_total",
	"System calls of the process that its sandbox refused, or, in mode log, would refuse.", "mode")

func desc(name, help string, labels ...string) *metric {
	return &metric{name: "vnic_" + name, help: help, labels: labels}
}

// queueDesc is desc for what each half of a queue pair has.
func queueDesc(name, help string, labels ...string) *metric {
	return desc(name, help, append([]string{"port", "queue", "direction"}, labels...)...)
}

func (s *Snapshot) collect(x *exposition) {
	if b := s.Sandbox; b != nil {
		x.add(descSandbox, float64(b.Refused), b.Mode)
	}
	for i := range s.Ports {
		s.Ports[i].collect(x)
	}
	if s.Scale != nil {
		x.add(descLabScale, *s.Scale)
	}
	for i := range s.Links {
		l := &s.Links[i]
		x.add(descLabPayload, float64(l.Payload), l.Name)
		x.add(descLabBytes, float64(l.Bytes), l.Name)
		if l.Rate > 0 {
			x.add(descLabBusy, l.Busy, l.Name)
			x.add(descLabRate, l.Rate, l.Name)
		}
	}
}

func (p *PortCounters) collect(x *exposition) {
	gauge := func(m *metric, v float64, labels ...string) { x.add(m, v, append([]string{p.Name}, labels...)...) }
	count := func(m *metric, n uint64, labels ...string) { gauge(m, float64(n), labels...) }
	gauge(descPort, 1, p.Kind, p.MAC)
	l := &p.Link
	count(descLinkPackets, l.Received, "rx")
	count(descLinkPackets, l.Sent, "tx")
	count(descLinkSegments, l.ReceivedSegments, "rx")
	count(descLinkSegments, l.SentSegments, "tx")
	count(descLinkBytes, l.ReceivedBytes, "rx")
	count(descLinkBytes, l.SentBytes, "tx")
	count(descBusy, l.Busy)
	for reason, n := range l.Drops {
		count(descLinkDrops, n, reason)
	}
	if p.Memory != nil {
		gauge(descFrontend, float64(*p.Memory))
	}
	if g := p.Gateway; g != nil {
		count(descRefused, g.Refused)
		count(descEvicted, g.Evicted)
		count(descUnreached, g.Unreached)
		count(descUDPLost, g.LostDatagrams)
		for rule, n := range g.Denied {
			count(descDenied, n, rule)
		}
	}
	for _, q := range p.Queues {
		i := strconv.Itoa(q.Index)
		split := 0.0
		if q.Split {
			split = 1
		}
		gauge(descSplit, split, i)
		for _, half := range []struct {
			name string
			Direction
		}{{"rx", q.RX}, {"tx", q.TX}} {
			collect(directionCounters, &half.Direction, count, i, half.name)
		}
	}
	if p.Engine == nil {
		return
	}
	count(descUnsplit, p.Unsplit)
	count(descLost, p.LostReplies)
	count(descMerged, p.Coalesced.Frames)
	count(descMerges, p.Coalesced.Packets)
	gauge(descRules, float64(p.Rules))
	collect(engineCounters, p.Engine, count)
	for _, g := range p.GPUs {
		gauge(descMemory, float64(g.Bytes), strconv.Itoa(g.ID))
		gauge(descRegistered, float64(g.Registered), strconv.Itoa(g.ID))
	}
}

// metricsFlag is the flag of the metrics' address.
const metricsFlag = "--metrics"

// Check says what is wrong with the options, as a user gave them.
func (o *Options) Check() error {
	return httpserver.CheckAddr(metricsFlag, o.Metrics, "localhost:9118")
}

// metricsHandler serves the metrics of s, and those of its process.
func metricsHandler(s *Server) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", expose(s))
	mux.HandleFunc("GET /{$}", page(s))
	return mux
}

// scrapesAtOnce is how many requests for metrics are answered at the same time: each takes memory for all metrics.
const scrapesAtOnce = 4

// expose answers with the metrics.
func expose(s *Server) http.HandlerFunc {
	refusal := fmt.Sprintf("Limit of concurrent requests reached (%d), try again later.", scrapesAtOnce)
	return atOnce(scrapesAtOnce, refusal, func(w http.ResponseWriter, _ *http.Request) {
		var x exposition
		now, _ := s.counters()
		now.collect(&x)
		collectGo(&x)
		collectProcess(&x)
		w.Header().Set("Content-Type", expositionType)
		_, _ = w.Write(x.text()) // an error is the client's
	})
}

// atOnce lets n requests into a handler at the same time. One more is refused with status 503, and does not wait.
func atOnce(n int, refusal string, h http.HandlerFunc) http.HandlerFunc {
	places := make(chan struct{}, n)
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			h(w, r)
		default:
			http.Error(w, refusal, http.StatusServiceUnavailable)
		}
	}
}

// maxScrapers is how many connections may be open to the metrics.
const maxScrapers = 64

func serveMetrics(addr string, s *Server) (*httpserver.Server, error) {
	return httpserver.Serve(httpserver.Options{Addr: addr, Flag: metricsFlag, Handler: metricsHandler(s),
		Conns: maxScrapers, Log: s.log})
}
