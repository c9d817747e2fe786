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

// Edge is one direction of a link, as "a.nic0 up", "a.s0 to s1" or the wire "a.nic0 out", or the memory of a
// socket, as "a.s0 memory".
type Edge struct {
	Name string
	Rate float64 // bytes a second, at scale 1; 0: unknown
	Wire bool    // the edge is one direction of a NIC's Ethernet

	shape *shape.Edge // nil without a rate
}

// Busy returns for how many nanoseconds packets and copies have reserved the edge; 0 without a rate.
func (e *Edge) Busy() int64 {
	if e.shape == nil {
		return 0
	}
	return e.shape.Busy()
}

// Load is what packets or copies cost on an edge: bytes on it per byte of payload, byte of header, buffer,
// packet and byte on the wire.
type Load struct {
	*Edge
	Times                                 int // how often payload crosses the edge
	Payload, Header, Buffer, Packet, Wire float64
}

// Way is the memory of payload: host memory, or a GPU's, perhaps bounced through host memory.
type Way struct {
	GPU     int // number in Machine.GPUs; -1: host memory
	Bounced bool
	Node    int // of host memory: 1 + the number of its socket; 0: the socket above the NIC
}

// ByHost is payload in the memory of the socket above the NIC.
var ByHost = Way{GPU: -1}

func hostNode(i int) Way { return Way{GPU: -1, Node: i + 1} }

// FormatEdgeRate formats a rate in bytes a second for the edge with this name: as bits a second for Ethernet, else
// as bytes a second.
func FormatEdgeRate(name string, rate float64) string {
	if strings.HasSuffix(name, wireOut) || strings.HasSuffix(name, wireIn) {
		return FormatBitRate(rate)
	}
	return humanize.SIWithDigits(rate, 1, "B/s")
}

// Suffixes of the names of wires.
const (
	wireOut = " out"
	wireIn  = " in"
)

// edge returns the edge with this name, and makes it if it does not exist.
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

// Edges lists the edges made so far that have a rate, sorted by name.
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

// Described reports whether the machine is not Bare, or its guest has an interconnect, or a rate of a link, of a NIC's
// wire or of a memory.
func (m *Machine) Described() bool { return !m.Bare || m.desc.shaped() }

// Clock returns the clock with the lab's scale.
func (l *Lab) Clock() *shape.Clock { return l.clock }

// rate returns the rate of an edge of the machine's tree, in bytes a second; 0: unknown.
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

// edges converts loads of the machine's tree; set stores the bytes per unit in a Load.
func (m *Machine) edges(loads []pcie.Load, set func(*Load, float64)) (out []Load) {
	for _, x := range loads {
		one := Load{Edge: m.lab.edge(m.Name+"."+x.Edge.String(), m.rate(x.Edge), false)}
		set(&one, x.PerByte)
		out = append(out, one)
	}
	return out
}

// loadsOf is the key of Port.loads.
type loadsOf struct {
	way             Way
	engine, outward bool
}

// known returns the loads of this kind. If none are stored, it calls loads and stores the result.
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

// Loads returns the edges that the port's sent or received packets load if their payload takes a way: only the wire
// if the port has no Place. Headers and descriptors are in the memory of the socket above the NIC. The caller must
// not change the list.
func (p *Port) Loads(way Way, sends bool) []Load {
	return p.known(loadsOf{way: way, outward: sends}, func() []Load { return p.newLoads(way, sends) })
}

func (p *Port) newLoads(way Way, sends bool) (all []Load) {
	tree, d, name := p.machine.Tree, p.Model.received, p.Name+wireIn
	move, engine := tree.Write, tree.Read // how the NIC moves payload, and how the GPU does if it is bounced
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

// EngineLoads returns the edges that a GPU's copies to or from host memory load. node is 1 + the number of
// the memory's socket; 0: the socket above the GPU. The caller must not change the list.
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

func crosses(x *Load, b float64) {
	if x.Payload = b; b >= 1 { // else only read requests cross
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

// route returns the route over the edges that have a rate; nil: none has.
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

// shaped reports whether the guest has an interconnect, or a rate of a link, of a NIC's wire or of a memory.
func (g *Guest) shaped() bool {
	return len(g.Interconnects) > 0 || slices.ContainsFunc(g.Sockets, func(s Socket) bool { return s.DRAM > 0 }) ||
		slices.ContainsFunc(g.Switches, func(s Switch) bool { return s.Link.Known() }) ||
		slices.ContainsFunc(g.NICs, func(n NIC) bool { return n.Rate > 0 || n.Slot.Link.Known() }) ||
		slices.ContainsFunc(g.GPUs, func(m GPU) bool { return m.Slot.Link.Known() })
}

// shape returns the routes of the port's packets and of GPUs' copies; nil: the guest is not shaped.
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

// nodes returns the number of sockets, each with a file of its own for its RAM (ramSizes in
// internal/machine/qemu/tree.go). It returns 0, so that sockets' RAM is not distinguished, with one socket or none,
// with more than dma.MaxNodes, or without a Place.
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
	Payload uint64  // bytes of payload, counted once per crossing
	Bytes   float64 // all bytes, also of headers, rings and the link layer
}

// carry adds n bytes of payload to the edges of loads.
func carry(to map[*Edge]Carried, loads []Load, n uint64) {
	for _, x := range loads {
		c := to[x.Edge]
		c.Payload += n * uint64(x.Times)
		c.Bytes += float64(n) * x.Payload
		to[x.Edge] = c
	}
}

// Carry adds to the counts of each edge in the map the bytes that the port's queues, and its engine's copies between
// GPUs and host memory, have moved over the edge. While packets pass, the numbers may not match each other.
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
			for node := range p.nodes() + 1 { // 0: the copies whose node is unknown
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

// besides returns the bytes on the edge for headers and ring entries, or, if the edge is a wire, for whole frames,
// payload included.
func (x *Load) besides(c *control.DirCounters, buffers float64) float64 {
	return x.Header*float64(c.HeaderBytes) + x.Packet*float64(c.Packets) + x.Buffer*buffers +
		x.Wire*nic.WireBytes(c.DeviceBytes+c.GPUFileBytes+c.HostBytes, c.HeaderBytes, c.Packets, c.Segments)
}

// CarryFlow adds to the count of each edge in the map the bytes of one direction of a connection: c has the
// connection's counters for this direction, and all its payload takes the same way. CarryFlow assumes the port's mean
// number of buffers per packet in this direction.
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
