package stat

import (
	"fmt"
	"net/http"
	"strconv"

	"vnic.dev/vnic/internal/httpserver"
)

func (s *Snapshot) collect(x *exposition) {
	if b := s.Sandbox; b != nil {
		x.add("vnic_sandbox_refused_total",
			"System calls of the process that its sandbox refused, or, in mode log, would refuse.", float64(b.Refused),
			"mode", b.Mode)
	}
	for i := range s.Ports {
		s.Ports[i].collect(x)
	}
	if s.Scale != nil {
		x.add("vnic_lab_scale", "How many times slower than their rates links of the lab are; 0: they are not slow.",
			*s.Scale)
	}
	for i := range s.Links { // vnic_lab_link_, as vnic_link_ is the prefix of the metrics of ports' wires
		l := &s.Links[i]
		add := func(name, help string, v float64) { x.add("vnic_lab_link_"+name, help, v, "link", l.Name) }
		add("payload_bytes_total",
			"Payload bytes that a link of the lab or a memory carried, each as often as it crossed it.", float64(l.Payload))
		add("bytes_total", "Bytes that a link of the lab or a memory carried, with headers, rings and what links add to "+
			"packets.", float64(l.Bytes))
		if l.Rate > 0 {
			add("busy_seconds_total", "Time for which a link of the lab or a memory was taken.", l.Busy)
			add("rate_bytes", "Bytes a second of a link of the lab or a memory that the lab file says, whatever the scale.",
				l.Rate)
		}
	}
}

// countFunc adds a sample with the value n; labels are pairs of name and value.
type countFunc func(name, help string, n uint64, labels ...string)

func (p *PortCounters) collect(x *exposition) {
	count := func(name, help string, n uint64, labels ...string) {
		x.add("vnic_"+name, help, float64(n), append([]string{"port", p.Name}, labels...)...)
	}
	count("port_info", "What a port is.", 1, "kind", p.Kind, "mac", p.MAC)
	l := &p.Link
	for _, way := range []struct {
		name                     string
		packets, segments, bytes uint64
	}{{"rx", l.Received, l.ReceivedSegments, l.ReceivedBytes}, {"tx", l.Sent, l.SentSegments, l.SentBytes}} {
		count("link_packets_total", "Packets of a port on the wire.", way.packets, "direction", way.name)
		count("link_segments_total", "Packets of a port on the wire, counted as packets of the wire's size.", way.segments,
			"direction", way.name)
		count("link_bytes_total", "Bytes of a port on the wire.", way.bytes, "direction", way.name)
	}
	count("link_busy_total", "Times that a port had no buffers.", l.Busy)
	for reason, n := range l.Drops {
		count("link_drops_total", "Packets dropped on the way from or to a port.", n, "reason", reason)
	}
	if p.Memory != nil {
		count("frontend_memory_bytes", "Bytes of host memory that a frontend's shared memory occupies.", *p.Memory)
	}
	if g := p.Gateway; g != nil {
		count("gateway_refused_total", "Flows, questions and datagrams of guests beyond the gateway's bounds.", g.Refused)
		count("gateway_evicted_total",
			"Flows, questions and datagrams that the gateway ended to make room for a guest with fewer of them.", g.Evicted)
		count("gateway_unreached_total",
			"Flows whose other end did not answer, and connections that a guest asked for and did not confirm.", g.Unreached)
		count("gateway_lost_datagrams_total", "Datagrams for which a socket of the host, or a guest, had no room.",
			g.LostDatagrams)
		for rule, n := range g.Denied {
			count("gateway_denied_total", "Flows and questions of guests that the gateway's policy refuses.", n, "rule", rule)
		}
	}
	for i := range p.Queues {
		q := &p.Queues[i]
		index, split := strconv.Itoa(q.Index), uint64(0)
		if q.Split {
			split = 1
		}
		count("queue_split", "Whether a receive queue splits headers off.", split, "queue", index)
		collect(directionCounters, &q.RX, count, "queue", index, "direction", "rx")
		collect(directionCounters, &q.TX, count, "queue", index, "direction", "tx")
	}
	if p.Engine == nil {
		return
	}
	count("unsplit_frames_total", "Frames that a queue was to split, and that could not be.", p.Unsplit)
	count("lost_replies_total", "Answers of the control channel that did not reach the guest.", p.LostReplies)
	count("coalesced_frames_total", "Frames that a guest got as part of a GSO packet made of several.", p.Coalesced.Frames)
	count("coalesced_packets_total", "GSO packets made of several frames for a guest.", p.Coalesced.Packets)
	count("flow_rules", "Flow rules that are set.", uint64(p.Rules))
	collect(engineCounters, p.Engine, count)
	for _, g := range p.GPUs {
		id := strconv.Itoa(g.ID)
		count("gpu_memory_bytes", "Memory of a GPU.", g.Bytes, "gpu", id)
		count("gpu_registered_bytes", "Memory of a GPU that a guest has registered as buffers.", g.Registered, "gpu", id)
	}
}

const metricsFlag = "--metrics"

// Check returns an error, which names the user's flag, if Metrics is neither "" nor HOST:PORT.
func (o *Options) Check() error {
	return httpserver.CheckAddr(metricsFlag, o.Metrics, "localhost:9118")
}

func metricsHandler(s *Server) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", expose(s))
	mux.HandleFunc("GET /{$}", page(s))
	return mux
}

// scrapesAtOnce bounds concurrent requests for metrics: each needs memory for all metrics.
const scrapesAtOnce = 4

func expose(s *Server) http.HandlerFunc {
	refusal := fmt.Sprintf("Limit of concurrent requests reached (%d), try again later.", scrapesAtOnce)
	return atOnce(scrapesAtOnce, refusal, func(w http.ResponseWriter, _ *http.Request) {
		var x exposition
		now, _ := s.counters()
		now.collect(&x)
		collectGo(&x)
		collectProcess(&x)
		w.Header().Set("Content-Type", expositionType)
		_, _ = w.Write(x.text()) // an error means that the client has gone
	})
}

// atOnce limits a handler to n requests at the same time; others get status 503.
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

const maxScrapers = 64

func serveMetrics(addr string, s *Server) (*httpserver.Server, error) {
	return httpserver.Serve(httpserver.Options{Addr: addr, Flag: metricsFlag, Handler: metricsHandler(s),
		Conns: maxScrapers, Log: s.opt.Log})
}
