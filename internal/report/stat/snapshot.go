// Package stat shows the counters of a running vnic: to `vnic stat` over a socket, and to Prometheus over HTTP.
//
// A Server takes a Snapshot of its ports at each request, and only then; the datapath knows nothing of it. Its socket
// lies in a directory that is this user's alone, named for the process. A client asks for one Snapshot or one change of
// the lab, is answered (package jsonlines), and the connection ends: a client that never reads costs a goroutine for
// some seconds. What a process leaves that was killed, the next one removes.
package stat

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/internal/wire/gateway"
)

// Port is a port of the switch, with the sources of its counters.
type Port struct {
	Kind string     // "virtio", "gve", "host", "uplink"
	MAC  wire.MAC   // zero: none of its own
	NIC  *nic.Port  // nil: a port without queues
	Link *wire.Link // of a port without NIC
	Name string     // "" = the link's

	Gateway func() gateway.Stats // nil: it is none

	Memory func() (bytes uint64, counted bool) // that the frontend's memory occupies; nil: not counted

	// Holders asks the guest which of its connections hold tokens; nil: the guest cannot be asked.
	Holders func(ctx context.Context) (list []devmem.Holder, known bool)
}

// Snapshot has a vnic's counters at one moment. Counters begin at 0 with the process and only grow;
// a port that goes away takes its counters with it. The JSON keys are API: schema 1.
type Snapshot struct {
	Schema  int            `json:"schema"`
	PID     int            `json:"pid"`
	Command string         `json:"command"` // "run", "boot", "serve"
	Time    time.Time      `json:"time"`
	Uptime  float64        `json:"uptime_seconds"`    // by the monotonic clock: rates go by it
	Sandbox *Sandbox       `json:"sandbox,omitempty"` // nil: the process has none
	Ports   []PortCounters `json:"ports"`
	Scale   *float64       `json:"scale,omitempty"` // links are so many times slower than their rates; 0: not slow
	Links   []LabLink      `json:"links,omitempty"` // of the lab, by name
	Flows   *Flows         `json:"flows,omitempty"` // nil: no port keeps account of them
}

// LabLink is one direction of a link of the lab that packets can cross, or a memory. Only links that have a rate or have
// carried something are shown, and none of a lab that describes no links.
type LabLink struct {
	Name    string  `json:"name"`           // "a.nic0 up", "a.s0 memory"; of the wire "a.nic0 out", "a.nic0 in"
	Rate    float64 `json:"rate,omitempty"` // bytes a second that the lab file says, whatever the scale; 0: none
	Payload uint64  `json:"payload_bytes"`  // as often as they crossed it, those included that were sent again
	Bytes   uint64  `json:"bytes"`          // with headers, rings, and what packets of links and wires add
	Busy    float64 `json:"busy_seconds"`   // for which it was taken; 0 of one without a rate
}

// Sandbox is what keeps the process from what it does not need.
type Sandbox struct {
	Mode    string `json:"mode"`    // "on"; or "log": nothing is refused
	Refused uint64 `json:"refused"` // system calls, or what would be; what Landlock refuses is not counted
}

// PortCounters are the counters of one port.
type PortCounters struct {
	Name        string             `json:"name"`
	Kind        string             `json:"kind"`
	MAC         string             `json:"mac,omitempty"`
	Link        LinkCounters       `json:"link"`
	Unsplit     uint64             `json:"unsplit"`          // frames of split queues that could not be split
	LostReplies uint64             `json:"lost_replies"`     // of the control channel
	Coalesced   Coalesced          `json:"coalesced"`        // of receive queues
	Faults      *nic.FaultCounters `json:"faults,omitempty"` // nil: it had none (vnic lab set)
	Rules       int                `json:"rules"`            // flow rules that are set
	Engine      *EngineCounters    `json:"engine,omitempty"`
	Gateway     *Gateway           `json:"gateway,omitempty"`
	Memory      *uint64            `json:"frontend_memory_bytes,omitempty"` // that it occupies; nil: nobody counts it
	GPUs        []GPU              `json:"gpus,omitempty"`
	Queues      []Queue            `json:"queues"`
}

// Coalesced counts frames that came to a guest as part of a GSO packet made of several, and the GSO
// packets.
type Coalesced struct {
	Frames  uint64 `json:"frames"`
	Packets uint64 `json:"packets"`
}

// LinkCounters are the wire's counters of one port.
type LinkCounters struct {
	wire.Counters
	Drops map[string]uint64 `json:"drops"` // by wire.DropReason; reasons with 0 are left out
}

// Gateway counts flows, questions and datagrams of guests that a gateway refused, ended or lost.
type Gateway struct {
	// Refused counts flows, questions and datagrams beyond the gateway's bounds.
	Refused uint64 `json:"refused"`
	// Evicted counts the ones that the gateway ended to make room for a guest with fewer of them.
	Evicted uint64 `json:"evicted"`
	// Unreached counts flows whose other end did not answer, and connections that a guest asked for and did not confirm.
	Unreached uint64 `json:"unreached"`
	// LostDatagrams counts datagrams for which a socket of the host, or a guest, had no room.
	LostDatagrams uint64 `json:"lost_datagrams"`
	// Denied counts flows and questions that the gateway's policy refuses, by gateway.Rule.
	Denied map[string]uint64 `json:"denied"`
}

// GPU is a GPU that a port uses.
type GPU struct {
	ID         int    `json:"id"`
	Bytes      uint64 `json:"bytes"`
	Buffers    int    `json:"buffers"` // that the guest has registered
	Registered uint64 `json:"registered_bytes"`
}

// Queue is a queue pair, as the guest sees it.
type Queue struct {
	Index int       `json:"index"`
	Split bool      `json:"split"` // the receive queue splits headers off
	RX    Direction `json:"rx"`
	TX    Direction `json:"tx"`
}

// snapshot reads all counters but the flows'.
func snapshot(command string, began time.Time, ports []Port) *Snapshot {
	now := time.Now()
	s := &Snapshot{Schema: 1, PID: os.Getpid(), Command: command, Time: now, Uptime: now.Sub(began).Seconds(),
		Ports: make([]PortCounters, 0, len(ports))}
	names := map[string]int{}
	for _, p := range ports {
		c := p.read()
		if names[c.Name]++; names[c.Name] > 1 { // a name tells ports apart, in metrics too
			c.Name = fmt.Sprintf("%s#%d", c.Name, names[c.Name])
		}
		s.Ports = append(s.Ports, c)
	}
	return s
}

func (p *Port) read() PortCounters {
	c := PortCounters{Name: p.Name, Kind: p.Kind, Link: LinkCounters{Drops: map[string]uint64{}}, Queues: []Queue{}}
	if p.MAC != (wire.MAC{}) {
		c.MAC = net.HardwareAddr(p.MAC[:]).String()
	}
	link := p.Link
	if p.NIC != nil {
		c.readNIC(p.NIC)
		link = p.NIC.Link()
	}
	if p.Memory != nil {
		if n, counted := p.Memory(); counted {
			c.Memory = &n
		}
	}
	if p.Gateway != nil {
		s := p.Gateway()
		c.Gateway = &Gateway{Refused: s.Refused, Evicted: s.Evicted, Unreached: s.Unreached, LostDatagrams: s.UDPLost,
			Denied: map[string]uint64{}}
		for r := gateway.RuleNone + 1; r < gateway.NumRules; r++ {
			c.Gateway.Denied[r.String()] = s.Denied[r]
		}
	}
	if link != nil {
		c.Link.read(link)
		if c.Name == "" {
			c.Name = link.Name()
		}
	}
	return c
}

func (c *PortCounters) readNIC(p *nic.Port) {
	if c.Name == "" {
		c.Name = p.Name()
	}
	c.Unsplit, c.LostReplies = p.Unsplit(), p.LostReplies()
	c.Coalesced.Frames, c.Coalesced.Packets = p.Coalesced()
	if f := p.Faults(); f != (nic.FaultCounters{}) {
		c.Faults = &f
	}
	all, _ := p.PortCounters()
	c.Engine = &EngineCounters{all.Engine, p.Reduced()}
	state := p.State()
	c.Rules = len(state.Rules)
	gpus, _ := p.GPUs()
	for _, g := range gpus {
		gpu := GPU{ID: int(g.ID), Bytes: g.Size}
		for _, b := range state.Buffers {
			if b.GPU == g.ID {
				gpu.Buffers++
				gpu.Registered += b.Size
			}
		}
		c.GPUs = append(c.GPUs, gpu)
	}
	for i, split := range state.Splits { // one for each queue pair
		rx, tx := p.QueueCounters(i)
		c.Queues = append(c.Queues, Queue{Index: i, Split: split.On, RX: Direction(rx), TX: Direction(tx)})
	}
}

func (l *LinkCounters) read(link *wire.Link) {
	*l = LinkCounters{Counters: link.Counters(), Drops: map[string]uint64{}}
	for r, count := range l.Counters.Drops {
		if count > 0 {
			l.Drops[wire.DropReason(r).String()] = count
		}
	}
}
