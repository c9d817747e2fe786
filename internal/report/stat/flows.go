package stat

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/flows"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// Flows is the account of the flows that the NICs have counted since the NICs were made.
type Flows struct {
	List   []Flow   `json:"list"`             // flows with a row in a NIC's account, most moved bytes first
	Others []Others `json:"others,omitempty"` // sums of flows that have lost their rows to other flows
	Hints  []string `json:"hints,omitempty"`
	More   int      `json:"-"` // number of flows left out of List; none moved more than a flow in List
}

// Flow has the counters of all packets with the same addresses, ports and protocol: one direction of a connection.
type Flow struct {
	Proto string     `json:"proto"` // "tcp", "udp", "icmp", "ip 47"; "other": frames that are not IP, or are malformed
	From  string     `json:"from"`  // address, and for TCP and UDP the port unless both ports are 0; "": Proto is "other"
	To    string     `json:"to"`
	TX    []FlowSide `json:"tx,omitempty"` // of the NICs that sent it
	RX    []FlowSide `json:"rx,omitempty"` // of the NICs that received it
	State string     `json:"state,omitempty"`
}

// FlowSide has one NIC's counters of a flow. Except header_bytes, counts of bytes are of payload.
type FlowSide struct {
	Port     string            `json:"port"`
	Queues   []int             `json:"queues"`          // busiest first
	Rule     uint32            `json:"rule,omitempty"`  // on receive: ID of a rule that has matched; 0: none
	Bound    []int             `json:"bound,omitempty"` // on receive: the port's queues that have had GPU memory
	Packets  uint64            `json:"packets"`
	Segments uint64            `json:"segments"`
	Header   uint64            `json:"header_bytes"`
	Device   uint64            `json:"device_bytes"`
	GPUFile  uint64            `json:"gpu_file_bytes"`
	Host     uint64            `json:"host_bytes"`
	Bounced  uint64            `json:"bounced_bytes"`
	Again    uint64            `json:"again_bytes"` // below TCP's highest sequence number so far: sent again or late
	Drops    map[string]uint64 `json:"drops,omitempty"`
	Lost     uint64            `json:"dropped_bytes"`
	First    time.Time         `json:"first"`
	Last     time.Time         `json:"last"`
	ruled    time.Time         // on receive: time of the last packet at the queue from which Rule is

	// Held is, on receive of a TCP flow with Device bytes, how many tokens the guest's connection has not returned; nil
	// otherwise, and if the guest has not reported it.
	Held *int `json:"tokens_held,omitempty"`

	// Only of TX[0] of a TCP flow that has sent payload, if a NIC has seen acknowledgments in the opposite direction:
	// unacknowledged payload (0 after a reset), and the receiver's last window, unscaled.
	InFlight uint64  `json:"in_flight_bytes,omitempty"`
	Window   *uint16 `json:"window,omitempty"`
}

// Others sums up the flows of one direction of a port that have lost their rows to other flows.
type Others struct {
	Port    string `json:"port"`
	TX      bool   `json:"tx"`
	Flows   uint64 `json:"flows"` // how often a flow lost its row: a flow that came again may count more than once
	Packets uint64 `json:"packets"`
	Payload uint64 `json:"payload_bytes"`
}

// Payload returns the bytes of payload in all memory.
func (s *FlowSide) Payload() uint64 { return s.Device + s.GPUFile + s.Host }

// GPU returns the bytes of payload in GPU memory, without bounced payload, which Host has.
func (s *FlowSide) GPU() uint64 { return s.Device + s.GPUFile }

func total(sides []FlowSide) (t FlowSide) {
	for i := range sides {
		t.add(&sides[i])
	}
	return t
}

func (s *FlowSide) add(o *FlowSide) {
	s.Packets += o.Packets
	s.Segments += o.Segments
	s.Header += o.Header
	s.Device += o.Device
	s.GPUFile += o.GPUFile
	s.Host += o.Host
	s.Bounced += o.Bounced
	s.Again += o.Again
	s.Lost += o.Lost
	for r, n := range o.Drops {
		if s.Drops == nil {
			s.Drops = map[string]uint64{}
		}
		s.Drops[r] += n
	}
	if s.First.IsZero() || !o.First.IsZero() && o.First.Before(s.First) {
		s.First = o.First
	}
	if o.Last.After(s.Last) {
		s.Last = o.Last
	}
	for _, q := range o.Queues {
		if !slices.Contains(s.Queues, q) {
			s.Queues = append(s.Queues, q)
		}
	}
	if o.Rule != 0 && (s.Rule == 0 || o.ruled.After(s.ruled)) {
		s.Rule, s.ruled = o.Rule, o.ruled
	}
}

// moved returns the larger of the received and the sent sum of payload: not each end has a NIC of vnic.
func (f *Flow) moved() uint64 {
	var sums [2]uint64
	for i, sides := range [][]FlowSide{f.RX, f.TX} {
		for k := range sides {
			sums[i] += sides[k].Payload()
		}
	}
	return max(sums[0], sums[1])
}

// worthARow reports whether a flow belongs in tables, which show only the first such flows.
func (f *Flow) worthARow() bool {
	return f.moved() > 0 && f.Proto != "other" || f.hasPorts() && len(total(f.TX).Drops) > 0
}

func (f *Flow) hasPorts() bool { return f.Proto == "tcp" || f.Proto == "udp" }

type portFlows struct {
	name  string
	rows  []nic.QueueFlows
	bound []int // receive queues that have had GPU memory
}

// accounts merges the flows that several ports have counted.
type accounts struct {
	wanted map[splitter.Flow]bool // nil: all
	flows  map[splitter.Flow]*flowState
	rest   []Others
}

// flowState is a Flow being merged.
type flowState struct {
	Flow
	flags uint8
	sent  bool   // top is valid
	top   uint32 // sequence number after the highest sent payload byte
	peer  flows.Peer
}

// readFlows returns the flows that moved most bytes, of all ports: at most "most" flows, or all if most is 0. It
// returns nil if no port counts flows, else it calls ask to get the connections that hold tokens.
func readFlows(ports []Port, name func(i int) string, most int, ask askFunc) *Flows {
	var list []portFlows
	kept := false
	for i := range ports {
		if n := ports[i].NIC; n != nil {
			list = append(list, portFlows{name(i), n.FlowAccount(), n.DeviceQueues()})
			kept = kept || n.CountsFlows()
		}
	}
	if !kept {
		return nil
	}
	return account(list, ask(ports, name), most)
}

// account is readFlows with the NICs' accounts in list, and the guests' answers by port's name in holders.
func account(list []portFlows, holders map[string][]devmem.Holder, most int) *Flows {
	a := accounts{flows: map[splitter.Flow]*flowState{}}
	all := &Flows{List: []Flow{}}
	if most > 0 {
		a.wanted, all.More = largest(list, most)
	}
	for i := range list {
		a.port(&list[i])
	}
	all.Others = a.rest
	for key, f := range a.flows {
		if a.wanted != nil && !a.wanted[key] {
			continue
		}
		f.Proto, f.From, f.To = names(&key)
		f.State = state(key, f.flags)
		a.inFlight(key, f)
		f.held(holders)
		all.List = append(all.List, f.Flow)
	}
	slices.SortFunc(all.List, func(a, b Flow) int {
		return cmp.Or(cmp.Compare(b.moved(), a.moved()), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To),
			cmp.Compare(a.Proto, b.Proto))
	})
	all.Hints = hints(all.List)
	return all
}

type queueRow struct {
	queue *nic.QueueFlows
	*flows.Row
}

func (a *accounts) port(p *portFlows) {
	var rest [2]Others
	var rows []queueRow
	for i := range p.rows {
		q := &p.rows[i]
		o := &rest[direction(q)]
		o.Flows += q.Others.Flows
		o.Packets += q.Others.Packets
		o.Payload += q.Others.Payload()
		for j := range q.Rows {
			if r := &q.Rows[j]; a.wanted == nil || a.wanted[r.Flow] || a.wanted[reverse(r.Flow)] {
				rows = append(rows, queueRow{q, r})
			}
		}
	}
	// FlowSide.Queues keeps this order.
	slices.SortStableFunc(rows, func(a, b queueRow) int { return cmp.Compare(b.Packets, a.Packets) })
	for _, r := range rows {
		a.row(p, r.queue, r.Row)
	}
	for i, o := range rest {
		if o.Flows > 0 {
			o.Port, o.TX = p.name, i == 1
			a.rest = append(a.rest, o)
		}
	}
}

func direction(q *nic.QueueFlows) int {
	if q.Tx {
		return 1
	}
	return 0
}

func reverse(f splitter.Flow) splitter.Flow {
	f.Src, f.Dst, f.SrcPort, f.DstPort = f.Dst, f.Src, f.DstPort, f.SrcPort
	return f
}

func (a *accounts) row(p *portFlows, q *nic.QueueFlows, r *flows.Row) {
	f := a.flows[r.Flow]
	if f == nil {
		f = new(flowState)
		a.flows[r.Flow] = f
	}
	f.flags |= r.Flags
	if q.Tx && r.Begun && (!f.sent || int32(r.Top-f.top) > 0) {
		f.top, f.sent = r.Top, true
	}
	if r.Known && (!f.peer.Known || int32(r.Ack-f.peer.Ack) >= 0) {
		f.peer = r.Peer
	}
	s := sideOf(r)
	s.Port, s.Queues = p.name, []int{q.Queue}
	list := &f.TX
	if !q.Tx {
		list = &f.RX
		s.Bound, s.Rule, s.ruled = p.bound, r.Rule, r.Last
	}
	if i := slices.IndexFunc(*list, func(s FlowSide) bool { return s.Port == p.name }); i >= 0 {
		(*list)[i].add(&s)
		return
	}
	*list = append(*list, s)
}

// inFlight sets InFlight and Window of the first sender, if a NIC has seen it send payload, and a NIC has seen
// acknowledgments in the opposite direction.
func (a *accounts) inFlight(key splitter.Flow, f *flowState) {
	back := a.flows[reverse(key)]
	if !f.sent || back == nil || !back.peer.Known || len(f.TX) == 0 {
		return
	}
	s := &f.TX[0]
	s.Window = &back.peer.Window
	if n := int32(f.top - back.peer.Ack); n > 0 && f.State != "reset" {
		s.InFlight = uint64(n)
	}
}

// shownFlows bounds the flows of a page: a guest can make as many flows as its NIC has rows.
const shownFlows = 200

type weighed struct {
	key   splitter.Flow
	moved uint64
}

func (w weighed) compare(o weighed) int {
	return cmp.Or(cmp.Compare(w.moved, o.moved), bytes.Compare(o.key.Src[:], w.key.Src[:]),
		bytes.Compare(o.key.Dst[:], w.key.Dst[:]), cmp.Compare(o.key.SrcPort, w.key.SrcPort),
		cmp.Compare(o.key.DstPort, w.key.DstPort), cmp.Compare(o.key.Proto, w.key.Proto))
}

// largest returns the flows that moved most bytes, at most "most" of them, and the number of others. wanted is
// nil if there are no others.
func largest(list []portFlows, most int) (wanted map[splitter.Flow]bool, more int) {
	sums := map[splitter.Flow][2]uint64{}
	for i := range list {
		for _, q := range list[i].rows {
			for j := range q.Rows {
				r := &q.Rows[j]
				s := sums[r.Flow]
				s[direction(&q)] += r.Payload()
				sums[r.Flow] = s
			}
		}
	}
	if len(sums) <= most {
		return nil, 0
	}
	top := make([]weighed, 0, most) // in ascending order
	for key, s := range sums {
		w := weighed{key, max(s[0], s[1])}
		if len(top) == most && w.moved < top[0].moved {
			continue
		}
		i, _ := slices.BinarySearchFunc(top, w, weighed.compare)
		switch {
		case len(top) < most:
			top = slices.Insert(top, i, w)
		case i > 0:
			copy(top, top[1:i])
			top[i-1] = w
		}
	}
	wanted = make(map[splitter.Flow]bool, most)
	for _, w := range top {
		wanted[w.key] = true
	}
	return wanted, len(sums) - most
}

func sideOf(r *flows.Row) FlowSide {
	s := FlowSide{Packets: r.Packets, Segments: r.Segments, Header: r.Header, Device: r.Device, GPUFile: r.GPUFile,
		Host: r.Host, Bounced: r.Bounced, Again: r.Again, Lost: r.Lost, First: r.First, Last: r.Last}
	for i, n := range r.Drops {
		if n > 0 {
			if s.Drops == nil {
				s.Drops = map[string]uint64{}
			}
			s.Drops[wire.DropReason(i).String()] = uint64(n)
		}
	}
	return s
}

func names(f *splitter.Flow) (proto, from, to string) {
	if *f == (splitter.Flow{}) {
		return "other", "", ""
	}
	addr := func(b [16]byte) netip.Addr {
		if f.IPv6 {
			return netip.AddrFrom16(b)
		}
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	src, dst := addr(f.Src), addr(f.Dst)
	switch {
	case f.Proto == 1 || f.Proto == 58:
		proto = "icmp"
	case f.Proto != splitter.ProtoTCP && f.Proto != splitter.ProtoUDP, f.SrcPort == 0 && f.DstPort == 0: // 0: a fragment
		proto = protoName(f.Proto)
	default:
		return protoName(f.Proto), netip.AddrPortFrom(src, f.SrcPort).String(), netip.AddrPortFrom(dst, f.DstPort).String()
	}
	return proto, src.String(), dst.String()
}

// state derives the state of a TCP connection from the flags of all packets in one direction; "": f is not TCP.
func state(f splitter.Flow, flags uint8) string {
	switch {
	case f.Proto != splitter.ProtoTCP:
		return ""
	case flags&splitter.RST != 0:
		return "reset"
	case flags&splitter.FIN != 0:
		return "closed"
	case flags == splitter.SYN:
		return "opening"
	}
	return "open"
}
