package stat

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/flows"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// Flows lists all flows, as the NICs have counted them since they were made.
type Flows struct {
	List   []Flow   `json:"list"`             // the flows that moved most come first
	Others []Others `json:"others,omitempty"` // flows whose rows were reused
	Hints  []string `json:"hints,omitempty"`  // sentences about flows with a likely mistake
	More   int      `json:"-"`                // number of flows that are left out of List, because they moved less
}

// Flow is one direction of a connection, or in general all packets with the same addresses, ports
// and protocol.
type Flow struct {
	Proto string     `json:"proto"` // "tcp", "udp", "icmp", "ip 47"; "other": frames that are not IP
	From  string     `json:"from"`  // address and port; only the address if there is no port; "": not IP
	To    string     `json:"to"`
	TX    []FlowSide `json:"tx,omitempty"` // at the NIC that sent it; missing if no guest's NIC did
	RX    []FlowSide `json:"rx,omitempty"` // at the NICs that received it
	State string     `json:"state,omitempty"`

	key splitter.Flow
}

// FlowSide has a NIC's counters of a flow. All bytes except header_bytes are payload.
type FlowSide struct {
	Port     string            `json:"port"`
	Queues   []int             `json:"queues"`          // that received or sent it; the busiest first
	Rule     uint32            `json:"rule,omitempty"`  // on receive: the flow rule that matched last
	Bound    []int             `json:"bound,omitempty"` // on receive: queues of the port that have GPU memory
	Packets  uint64            `json:"packets"`
	Segments uint64            `json:"segments"`
	Header   uint64            `json:"header_bytes"`
	Device   uint64            `json:"device_bytes"`
	GPUFile  uint64            `json:"gpu_file_bytes"`
	Host     uint64            `json:"host_bytes"`
	Bounced  uint64            `json:"bounced_bytes"`
	Again    uint64            `json:"again_bytes"` // below the highest sequence number: retransmitted, or reordered
	Drops    map[string]uint64 `json:"drops,omitempty"`
	Lost     uint64            `json:"dropped_bytes"`
	First    time.Time         `json:"first"`
	Last     time.Time         `json:"last"`

	// On receive into GPU memory: tokens that the connection has not returned, if the guest's stack or
	// agent reported them.
	Held *int `json:"tokens_held,omitempty"`

	// On transmit by TCP: unacknowledged payload, and the last window that the receiver advertised,
	// unscaled.
	InFlight uint64  `json:"in_flight_bytes,omitempty"`
	Window   *uint16 `json:"window,omitempty"`
}

// Others sums up the flows of one direction of a port whose rows were reused for new flows. They
// are not in List.
type Others struct {
	Port    string `json:"port"`
	TX      bool   `json:"tx"`
	Flows   uint64 `json:"flows"` // number of reused rows: a flow that returned may be counted twice
	Packets uint64 `json:"packets"`
	Payload uint64 `json:"payload_bytes"`
}

// Payload returns the bytes of payload in all kinds of memory.
func (s *FlowSide) Payload() uint64 { return s.Device + s.GPUFile + s.Host }

// GPU returns the bytes of payload in GPU memory.
func (s *FlowSide) GPU() uint64 { return s.Device + s.GPUFile }

// total adds up a flow's counters of several NICs.
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
	s.Rule = cmp.Or(s.Rule, o.Rule)
}

// moved returns the payload that a flow moved: the received bytes, or the sent ones if they are
// more, as when no guest's NIC received the flow.
func (f *Flow) moved() uint64 {
	rx, tx := uint64(0), uint64(0)
	for i := range f.RX {
		rx += f.RX[i].Payload()
	}
	for i := range f.TX {
		tx += f.TX[i].Payload()
	}
	return max(rx, tx)
}

// worthARow reports whether a flow is shown: if it moved payload and is IP, or if it is TCP or UDP
// and packets were dropped. So frames such as ARP are not shown.
func (f *Flow) worthARow() bool {
	return f.moved() > 0 && f.Proto != "other" || f.hasPorts() && len(total(f.TX).Drops) > 0
}

// hasPorts reports whether the flow is TCP or UDP.
func (f *Flow) hasPorts() bool { return f.Proto == "tcp" || f.Proto == "udp" }

// portFlows has the account of flows of a port.
type portFlows struct {
	name  string
	rows  []nic.QueueFlows
	bound []int // queues that have GPU memory
}

// accounts combines the accounts of all ports into a list of flows.
type accounts struct {
	want   map[splitter.Flow]bool // the flows to list; nil: all
	byKey  map[splitter.Flow]*Flow
	flags  map[splitter.Flow]uint8
	tops   map[splitter.Flow]uint32 // the highest sequence number sent
	peers  map[splitter.Flow]flows.Peer
	others []Others
}

// readFlows returns the flows of all ports: the ones that moved most, up to most of them, or all if
// most is 0; nil if no port counts flows. ask returns the token holders of each port.
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

// account combines the accounts of ports into the result of readFlows. said has the token holders,
// by port.
func account(list []portFlows, said map[string][]devmem.Holder, most int) *Flows {
	a := accounts{byKey: map[splitter.Flow]*Flow{}, flags: map[splitter.Flow]uint8{},
		tops: map[splitter.Flow]uint32{}, peers: map[splitter.Flow]flows.Peer{}}
	all := &Flows{}
	if most > 0 {
		a.want, all.More = largest(list, most)
	}
	for i := range list {
		a.port(&list[i])
	}
	all.List, all.Others = make([]Flow, 0, len(a.byKey)), a.others
	for _, f := range a.byKey {
		f.Proto, f.From, f.To = names(&f.key)
		f.State = state(f.key, a.flags[f.key])
		a.inFlight(f)
		f.held(said)
		all.List = append(all.List, *f)
	}
	slices.SortFunc(all.List, func(a, b Flow) int {
		return cmp.Or(cmp.Compare(b.moved(), a.moved()), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To),
			cmp.Compare(a.Proto, b.Proto))
	})
	all.Hints = hints(all.List)
	return all
}

// port adds the account of a port.
func (a *accounts) port(p *portFlows) {
	var others [2]Others
	for _, q := range p.rows {
		way := 0
		if q.Tx {
			way = 1
		}
		o := &others[way]
		o.Flows += q.Others.Flows
		o.Packets += q.Others.Packets
		o.Payload += q.Others.Payload()
		rows := q.Rows
		if a.want != nil {
			rows = slices.DeleteFunc(rows, func(r flows.Row) bool { return !a.want[r.Flow] && !a.want[reverse(r.Flow)] })
		}
		// The busiest queue of a flow comes first.
		slices.SortFunc(rows, func(a, b flows.Row) int { return cmp.Compare(b.Packets, a.Packets) })
		for i := range rows {
			a.row(p.name, &q, &rows[i], p.bound)
		}
	}
	for way, o := range others {
		if o.Flows > 0 {
			o.Port, o.TX = p.name, way == 1
			a.others = append(a.others, o)
		}
	}
}

// reverse returns the flow in the other direction.
func reverse(f splitter.Flow) splitter.Flow {
	f.Src, f.Dst, f.SrcPort, f.DstPort = f.Dst, f.Src, f.DstPort, f.SrcPort
	return f
}

// row adds a row of a queue's account.
func (a *accounts) row(name string, q *nic.QueueFlows, r *flows.Row, bound []int) {
	a.ends(r, q.Tx)
	if a.want != nil && !a.want[r.Flow] {
		return
	}
	f := a.byKey[r.Flow]
	if f == nil {
		f = &Flow{key: r.Flow}
		a.byKey[r.Flow] = f
	}
	a.flags[r.Flow] |= r.Flags
	s := sideOf(r)
	s.Port, s.Queues = name, []int{q.Queue}
	list := &f.TX
	if !q.Tx {
		list = &f.RX
		s.Bound = bound
		s.Rule = r.Rule
	}
	if i := slices.IndexFunc(*list, func(s FlowSide) bool { return s.Port == name }); i >= 0 {
		if s.Packets > (*list)[i].Packets {
			s.Queues, (*list)[i].Queues = (*list)[i].Queues, s.Queues
		}
		(*list)[i].add(&s)
		return
	}
	*list = append(*list, s)
}

// ends records, for TCP, the highest sequence number of a flow, and the last acknowledgment and
// window that it carried for the other direction.
func (a *accounts) ends(r *flows.Row, tx bool) {
	if top, ok := a.tops[r.Flow]; tx && r.Begun && (!ok || int32(r.Top-top) > 0) {
		a.tops[r.Flow] = r.Top
	}
	if was := a.peers[r.Flow]; r.Known && (!was.Known || int32(r.Ack-was.Ack) >= 0) {
		a.peers[r.Flow] = r.Peer
	}
}

// inFlight sets the unacknowledged payload and the receiver's window of a flow.
func (a *accounts) inFlight(f *Flow) {
	top, sent := a.tops[f.key]
	peer := a.peers[reverse(f.key)]
	if !sent || !peer.Known || len(f.TX) == 0 {
		return
	}
	s := &f.TX[0]
	s.Window = &peer.Window
	if n := int32(top - peer.Ack); n > 0 && f.State != "reset" {
		s.InFlight = uint64(n)
	}
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

// names returns a flow's protocol, source and destination as text.
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
	at := func(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }
	switch f.Proto {
	case splitter.ProtoTCP:
		proto = "tcp"
	case splitter.ProtoUDP:
		proto = "udp"
	default:
		proto = fmt.Sprintf("ip %d", f.Proto)
		if f.Proto == 1 || f.Proto == 58 {
			proto = "icmp"
		}
		return proto, addr(f.Src).String(), addr(f.Dst).String()
	}
	if f.SrcPort == 0 && f.DstPort == 0 { // fragments
		return proto, addr(f.Src).String(), addr(f.Dst).String()
	}
	return proto, at(addr(f.Src), f.SrcPort), at(addr(f.Dst), f.DstPort)
}

// state returns the state of a flow's TCP connection, derived from all TCP flags seen so far; "":
// not TCP.
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
