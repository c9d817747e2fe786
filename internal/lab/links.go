package lab

import (
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/lab/shape"
	"vnic.dev/vnic/internal/nic"
)

// Edge is one direction of a link of the lab, or the memory of a socket: in a guest's PCIe tree (as
// "a.nic0 up"), or a NIC's wire ("a.nic0 out", "a.nic0 in").
type Edge struct {
	Name string
	Rate float64 // bytes a second, at scale 1; 0: the description has none
	Wire bool    // the edge is a NIC's wire, which is Ethernet

	shape *shape.Edge // nil if it has no rate
}

// Busy returns for how many nanoseconds packets have occupied the edge so far; 0 for an edge
// without a rate.
func (e *Edge) Busy() int64 {
	if e.shape == nil {
		return 0
	}
	return e.shape.Busy()
}

// Load is what one queue's packets cost on an edge: bytes on the edge for each byte of payload,
// each byte of header, each buffer, each packet and each byte on the wire.
type Load struct {
	*Edge
	Times                                 int // how many times each byte of payload crosses the edge
	Payload, Header, Buffer, Packet, Wire float64
}

// Way is the memory that a NIC reads or writes payload in: host memory, or a GPU's, with or without
// a bounce through host memory.
type Way struct {
	GPU     int // number of the GPU in the machine; -1: host memory, see ByHost
	Bounced bool
	Node    int // for host memory: 1 + the number of its socket; 0: the socket above the NIC
}

// ByHost is the way of payload in the host memory of the socket above the NIC.
var ByHost = Way{GPU: -1}

// hostNode returns the way of payload in the memory of socket i.
func hostNode(i int) Way { return Way{GPU: -1, Node: i + 1} }

// FormatEdgeRate formats the rate of the edge with this name in the usual unit: bits a second for
// Ethernet, bytes a second for others.
func FormatEdgeRate(name string, rate float64) string {
	if strings.HasSuffix(name, wireOut) || strings.HasSuffix(name, wireIn) {
		return FormatBitRate(rate)
	}
	return humanize.SIWithDigits(rate, 1, "B/s")
}

// The suffixes of the names of a wire's edges, which begin with the NIC's name.
const (
	wireOut = " out"
	wireIn  = " in"
)

// edge returns the edge with this name. The first call for a name makes it, with rate and wire.
func (l *Lab) edge(name string, rate float64, wire bool) *Edge {
	l.edgeMu.Lock()
	defer l.edgeMu.Unlock()
	e := l.edges[name]
	if e == nil {
		e = &Edge{Name: name, Rate: rate, Wire: wire}
		if rate > 0 {
			e.shape = shape.NewEdge(name, rate)
		}
		l.edges[name] = e
	}
	return e
}

// Edges lists the edges that have a rate, sorted by name.
func (l *Lab) Edges() (list []*Edge) {
	l.edgeMu.Lock()
	defer l.edgeMu.Unlock()
	for _, e := range l.edges {
		if e.Rate > 0 {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *Edge) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Described reports whether QEMU shows the machine's tree to the guest (not Bare), or the description
// has the rate of at least one of the machine's links or memories.
func (m *Machine) Described() bool { return !m.Bare || m.desc.shaped() }

// Clock returns the clock with the lab's scale, the factor by which its links are slower than their
// rates.
func (l *Lab) Clock() *shape.Clock { return l.clock }

// rate returns the rate of an edge of the machine's tree, in bytes a second; 0: the description has
// none.
func (m *Machine) rate(e pcie.Edge) float64 {
	switch e.Kind {
	case pcie.Memory:
		for _, s := range m.desc.Sockets {
			if s.Name == e.Node {
				return s.DRAM
			}
		}
	case pcie.Across:
		for _, x := range m.desc.Interconnects {
			if x.From == e.Node && x.To == e.To || x.From == e.To && x.To == e.Node {
				return x.Rate
			}
		}
	default:
		for _, n := range m.Tree.Nodes() {
			if n.Name == e.Node && n.Link.Known() {
				return n.Link.Rate()
			}
		}
	}
	return 0
}

// edges converts loads of the machine's tree to Loads; set stores a load's bytes per unit in one
// field of its Load.
func (m *Machine) edges(loads []pcie.Load, set func(*Load, float64)) (out []Load) {
	for _, x := range loads {
		one := Load{Edge: m.lab.edge(m.Name+"."+x.Edge.String(), m.rate(x.Edge), false)}
		set(&one, x.PerByte)
		out = append(out, one)
	}
	return out
}

// loadsOf is the key of Port.loads: the arguments of Loads or of EngineLoads.
type loadsOf struct {
	way             Way
	engine, outward bool
}

// known returns the loads of this kind. The first call for a kind calls loads and stores its result:
// trees and models do not change.
func (p *Port) known(kind loadsOf, loads func() []Load) []Load {
	p.loadsMu.Lock()
	defer p.loadsMu.Unlock()
	list, ok := p.loads[kind]
	if !ok {
		list = loads()
		p.loads[kind] = list
	}
	return list
}

// Loads returns the edges that the port's sent or received packets load if their payload takes a
// way. Descriptors, headers and, unless way.Node names another socket, payload in host memory are
// in the memory of the socket above the NIC. The packets of a NIC that is in no tree load the wire
// alone. The caller must not change the list.
func (p *Port) Loads(way Way, sends bool) []Load {
	return p.known(loadsOf{way: way, outward: sends}, func() []Load { return p.newLoads(way, sends) })
}

func (p *Port) newLoads(way Way, sends bool) (all []Load) {
	tree, d, name := p.machine.Tree, p.Model.received, p.Name+wireIn
	move, engine := tree.Write, tree.Read // by the NIC, and by the GPU's engine for a bounce
	if sends {
		d, name, move, engine = p.Model.sent, p.Name+wireOut, tree.Read, tree.Write
	}
	all = append(all, Load{Edge: p.lab.edge(name, p.Rate(), true), Wire: 1, Times: 1})
	if p.Place == "" {
		return all
	}
	add := func(loads []pcie.Load, set func(*Load, float64)) { all = append(all, p.machine.edges(loads, set)...) }
	header := func(x *Load, b float64) { x.Header = b }
	buffer := func(x *Load, b float64) { x.Buffer = b * d.buffer }
	packet := func(x *Load, b float64) { x.Packet = b * d.packet }
	self, host := p.Place, tree.SocketOf(p.Place)
	payload := host
	switch {
	case way.Bounced:
		add(engine(p.machine.GPUs[way.GPU].Place, host), crosses)
	case way.GPU >= 0:
		payload = p.machine.GPUs[way.GPU].Place
	case way.Node > 0:
		payload = p.machine.desc.Sockets[way.Node-1].Name
	}
	add(move(self, payload), crosses)
	add(move(self, host), header)
	add(tree.Read(self, host), buffer)
	add(tree.Write(self, host), packet)
	return sum(all)
}

// EngineLoads returns the edges that a GPU's copy engines load when they copy to or from host
// memory. node is 1 + the number of the memory's socket; 0: the socket above the GPU. The caller
// must not change the list.
func (p *Port) EngineLoads(gpu, node int, toHost bool) []Load {
	return p.known(loadsOf{way: Way{GPU: gpu, Node: node}, engine: true, outward: toHost},
		func() []Load { return p.newEngineLoads(gpu, node, toHost) })
}

func (p *Port) newEngineLoads(gpu, node int, toHost bool) []Load {
	tree, self := p.machine.Tree, p.machine.GPUs[gpu].Place
	memory := tree.SocketOf(self)
	if node > 0 {
		memory = p.machine.desc.Sockets[node-1].Name
	}
	loads := tree.Read(self, memory)
	if toHost {
		loads = tree.Write(self, memory)
	}
	return sum(p.machine.edges(loads, crosses))
}

// crosses sets the bytes on the edge per byte of payload.
func crosses(x *Load, b float64) {
	if x.Payload = b; b >= 1 { // else only the read requests cross the edge
		x.Times = 1
	}
}

// sum adds up the loads of each edge.
func sum(loads []Load) (out []Load) {
	for _, x := range loads {
		i := slices.IndexFunc(out, func(o Load) bool { return o.Edge == x.Edge })
		if i < 0 {
			out = append(out, x)
			continue
		}
		o := &out[i]
		o.Times += x.Times
		o.Payload, o.Header, o.Buffer = o.Payload+x.Payload, o.Header+x.Header, o.Buffer+x.Buffer
		o.Packet, o.Wire = o.Packet+x.Packet, o.Wire+x.Wire
	}
	return out
}

// route returns the route that slows packets with these loads down: the edges that have a rate.
// nil: there are none.
func (l *Lab) route(loads []Load) *shape.Route {
	var shares []shape.Share
	for _, x := range loads {
		if x.shape != nil {
			shares = append(shares, shape.Share{Edge: x.shape, Payload: x.Payload, Header: x.Header, Buffer: x.Buffer,
				Packet: x.Packet, Wire: x.Wire})
		}
	}
	return shape.NewRoute(l.clock, shares)
}

// shaped reports whether a link or memory of the guest has a rate.
func (g *Guest) shaped() bool {
	return len(g.Interconnects) > 0 || slices.ContainsFunc(g.Sockets, func(s Socket) bool { return s.DRAM > 0 }) ||
		slices.ContainsFunc(g.Switches, func(s Switch) bool { return s.Link.Known() }) ||
		slices.ContainsFunc(g.NICs, func(n NIC) bool { return n.Rate > 0 || n.Slot.Link.Known() }) ||
		slices.ContainsFunc(g.GPUs, func(m GPU) bool { return m.Slot.Link.Known() })
}

// shape returns the routes of the port's packets and of the GPUs' copies for the port; nil: no link or
// memory of the guest has a rate.
func (p *Port) shape() *nic.Shape {
	if !p.machine.desc.shaped() {
		return nil
	}
	s := &nic.Shape{Tx: p.routes(true), Rx: p.routes(false)}
	for i, gpu := range p.machine.GPUs {
		out, in := &s.ToHost[gpu.ID()], &s.FromHost[gpu.ID()]
		out.Host, in.Host = p.lab.route(p.EngineLoads(i, 0, true)), p.lab.route(p.EngineLoads(i, 0, false))
		for node := range p.nodes() {
			out.Nodes[node] = p.lab.route(p.EngineLoads(i, node+1, true))
			in.Nodes[node] = p.lab.route(p.EngineLoads(i, node+1, false))
		}
	}
	return s
}

// nodes returns the number of sockets whose memories have separate addresses: a guest with several
// sockets has RAM for each of them (internal/machine/qemu/tree.go). 0: the guest has one memory, more than
// dma.MaxNodes sockets, or a NIC that is in no tree.
func (p *Port) nodes() int {
	if n := len(p.machine.desc.Sockets); n > 1 && n <= dma.MaxNodes && p.Place != "" {
		return n
	}
	return 0
}

// routes returns the routes of the port's packets in one direction.
func (p *Port) routes(sends bool) (r nic.Routes) {
	route := func(w Way) *shape.Route { return p.lab.route(p.Loads(w, sends)) }
	r.Host = route(ByHost)
	for i := range p.nodes() {
		r.Nodes[i] = route(hostNode(i))
	}
	for i, gpu := range p.machine.GPUs {
		if !slices.Contains(p.GPUs, gpu) {
			continue
		}
		if p.machine.Tree.Path(p.Place, gpu.Place).P2P() {
			r.Direct[gpu.ID()] = route(Way{GPU: i})
		}
		r.Bounced[gpu.ID()] = route(Way{GPU: i, Bounced: true})
	}
	return r
}

// Carried counts the bytes that an edge has carried.
type Carried struct {
	Payload uint64  // bytes of payload, each counted as often as it crossed the edge
	Bytes   float64 // all bytes, also of headers, rings and the link layer: counters times their Load
}

// carry adds n bytes of payload with these loads to their edges.
func carry(to map[*Edge]Carried, loads []Load, n uint64) {
	for _, x := range loads {
		c := to[x.Edge]
		c.Payload += n * uint64(x.Times)
		c.Bytes += float64(n) * x.Payload
		to[x.Edge] = c
	}
}

// Carry adds to each edge the bytes that the port's queues and engines have moved over it so far.
// It reads one counter after the other: while packets pass, the payload it adds may be less than
// the true number, but is never more.
func (p *Port) Carry(to map[*Edge]Carried) {
	for i := range p.NIC().QueuePairs() {
		rx, tx := p.NIC().QueueCounters(i)
		rxTo, txTo := p.NIC().QueueTraffic(i)
		p.carryQueue(to, &rx, &rxTo, false)
		p.carryQueue(to, &tx, &txTo, true)
	}
	if p.Place == "" {
		return
	}
	for i, gpu := range p.machine.GPUs {
		if slices.Contains(p.GPUs, gpu) {
			for node := range p.nodes() + 1 { // 0: the node is unknown
				if out, in := p.NIC().Copied(gpu.ID(), node-1); node == 0 || out+in > 0 {
					carry(to, p.EngineLoads(i, node, true), out)
					carry(to, p.EngineLoads(i, node, false), in)
				}
			}
		}
	}
}

func (p *Port) carryQueue(to map[*Edge]Carried, c *control.DirCounters, t *nic.Traffic, sends bool) {
	if c.Packets == 0 {
		return
	}
	host := p.Loads(ByHost, sends)
	rest := c.HostBytes - min(c.HostBytes, c.BouncedBytes)
	for i := range p.nodes() {
		if n := t.Host[i]; n > 0 {
			carry(to, p.Loads(hostNode(i), sends), n)
			rest -= min(rest, n)
		}
	}
	carry(to, host, rest)
	for _, x := range host {
		n := to[x.Edge]
		n.Bytes += x.besides(c, float64(t.Buffers))
		to[x.Edge] = n
	}
	for i, gpu := range p.machine.GPUs {
		if n := t.Direct[gpu.ID()]; n > 0 {
			carry(to, p.Loads(Way{GPU: i}, sends), n)
		}
		if n := t.Bounced[gpu.ID()]; n > 0 {
			carry(to, p.Loads(Way{GPU: i, Bounced: true}, sends), n)
		}
	}
}

// besides returns the bytes on the edge besides payload in memory: headers, rings, and on a wire
// all bytes.
func (x *Load) besides(c *control.DirCounters, buffers float64) float64 {
	return x.Header*float64(c.HeaderBytes) + x.Packet*float64(c.Packets) + x.Buffer*buffers +
		x.Wire*nic.WireBytes(c.DeviceBytes+c.GPUFileBytes+c.HostBytes, c.HeaderBytes, c.Packets, c.Segments)
}

// CarryFlow adds to each edge the bytes that it has carried for one connection. c counts one
// direction of the connection, whose payload all takes one way. CarryFlow assumes that the
// connection's packets have as many buffers as the port's packets have on average.
func (p *Port) CarryFlow(to map[*Edge]float64, c *control.DirCounters, way Way, sends bool) {
	var packets, buffers uint64
	for i := range p.NIC().QueuePairs() {
		rx, tx := p.NIC().QueueCounters(i)
		rxTo, txTo := p.NIC().QueueTraffic(i)
		if sends {
			rx, rxTo = tx, txTo
		}
		packets, buffers = packets+rx.Packets, buffers+rxTo.Buffers
	}
	mean := float64(buffers) / float64(max(packets, 1))
	for _, x := range p.Loads(way, sends) {
		to[x.Edge] += x.Payload*float64(c.DeviceBytes+c.GPUFileBytes+c.HostBytes) + x.besides(c, mean*float64(c.Packets))
	}
}
