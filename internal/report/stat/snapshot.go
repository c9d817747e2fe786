// Package stat shows the counters of a running vnic: to `vnic stat` over a socket, and to Prometheus over HTTP.
//
// A Server's socket is named after the process's id, in a private directory of this user. A client sends one request,
// and the server answers (package jsonlines) and closes the connection.
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
	Kind string     // "virtio" or "gve" (the NIC's model), "host" or "uplink"
	MAC  wire.MAC   // zero: the port has no MAC address of its own
	NIC  *nic.Port  // nil: no queues
	Link *wire.Link // set if NIC is nil
	Name string     // "": the NIC's name, or without a NIC the link's

	Gateway func() gateway.Stats // nil: the port is no gateway

	Memory func() (bytes uint64, counted bool) // what the frontend's shared memory occupies on the host; nil: not counted

	// Holders asks the guest which of its connections hold tokens; known is false if it has not answered. nil: the guest
	// cannot be asked.
	Holders func(ctx context.Context) (list []devmem.Holder, known bool)
}

// Snapshot has a vnic's counters at one moment. A port that goes away takes its counters with it. The JSON keys
// are API: schema 1.
type Snapshot struct {
	Schema  int            `json:"schema"`
	PID     int            `json:"pid"`
	Command string         `json:"command"`
	Time    time.Time      `json:"time"`
	Uptime  float64        `json:"uptime_seconds"`    // by the monotonic clock; for rates
	Sandbox *Sandbox       `json:"sandbox,omitempty"` // nil: the process has none
	Ports   []PortCounters `json:"ports"`
	Scale   *float64       `json:"scale,omitempty"` // how many times slower than their rates links are; 0: not slowed
	Links   []LabLink      `json:"links,omitempty"` // sorted by name
	Flows   *Flows         `json:"flows,omitempty"` // nil: no port counts flows
}

// LabLink is one direction of a link of the lab, or a socket's memory, with a rate or bytes that it has carried.
type LabLink struct {
	Name    string  `json:"name"`           // "a.nic0 up", "a.s0 memory"; the wire: "a.nic0 out", "a.nic0 in"
	Rate    float64 `json:"rate,omitempty"` // bytes per second, by the lab file; 0: none
	Payload uint64  `json:"payload_bytes"`  // at each crossing, retransmissions included
	Bytes   uint64  `json:"bytes"`          // with headers, ring accesses, and the framing of PCIe and wires
	Busy    float64 `json:"busy_seconds"`   // how long packets and GPUs' copies have occupied the link; 0 without a rate
}

// Sandbox is the state of the process's sandbox (package broker).
type Sandbox struct {
	Mode    string `json:"mode"`    // "on"; or "log": nothing is refused
	Refused uint64 `json:"refused"` // refused system calls, or in mode "log" the ones that would be
}

// PortCounters are the counters of one port.
type PortCounters struct {
	Name        string             `json:"name"`
	Kind        string             `json:"kind"`
	MAC         string             `json:"mac,omitempty"`
	Link        LinkCounters       `json:"link"`
	Unsplit     uint64             `json:"unsplit"`          // frames for split queues that could not be split
	LostReplies uint64             `json:"lost_replies"`     // answers and notices that the control channel lost
	Coalesced   Coalesced          `json:"coalesced"`        // of all receive queues
	Faults      *nic.FaultCounters `json:"faults,omitempty"` // nil: no fault has been counted
	Rules       int                `json:"rules"`
	Engine      *EngineCounters    `json:"engine,omitempty"`
	Gateway     *Gateway           `json:"gateway,omitempty"`
	Memory      *uint64            `json:"frontend_memory_bytes,omitempty"` // see Port.Memory; nil: not counted
	GPUs        []GPU              `json:"gpus,omitempty"`
	Queues      []Queue            `json:"queues"`
}

// Coalesced counts the GSO packets that the port made of several frames for a guest, and these frames.
type Coalesced struct {
	Frames  uint64 `json:"frames"`
	Packets uint64 `json:"packets"`
}

// LinkCounters are the wire's counters of one port.
type LinkCounters struct {
	wire.Counters
	Drops map[string]uint64 `json:"drops"` // by wire.DropReason, without zeros
}

// Gateway counts flows, DNS questions and datagrams, of guests or for them, that a gateway refused, ended, lost or
// could not deliver.
type Gateway struct {
	// Refused counts connections, flows, questions and datagrams beyond the gateway's limits.
	Refused uint64 `json:"refused"`
	// Evicted counts connections, flows, questions and datagrams that the gateway ended to make room for others.
	Evicted uint64 `json:"evicted"`
	// Unreached counts connections, flows and datagrams whose other end the gateway could not reach, and connections
	// that a guest did not confirm.
	Unreached uint64 `json:"unreached"`
	// LostDatagrams counts datagrams and echo replies lost for lack of room, because the guest was not found by ARP or
	// ND, or because their flow had ended.
	LostDatagrams uint64 `json:"lost_datagrams"`
	// Denied counts guests' attempts to reach addresses that the gateway's Policy or Own refuses, by gateway.Rule.
	Denied map[string]uint64 `json:"denied"`
}

// GPU is a GPU that a port uses.
type GPU struct {
	ID         int    `json:"id"`
	Bytes      uint64 `json:"bytes"`
	Buffers    int    `json:"buffers"` // that the guest has registered
	Registered uint64 `json:"registered_bytes"`
}

// Queue has the counters of a queue pair: rx and tx are the guest's receive and transmit.
type Queue struct {
	Index int       `json:"index"`
	Split bool      `json:"split"` // the receive queue splits headers off
	RX    Direction `json:"rx"`
	TX    Direction `json:"tx"`
}

// snapshot reads the counters of all ports, and leaves Links, Scale, Flows and Sandbox zero.
func snapshot(command string, began time.Time, ports []Port) *Snapshot {
	now := time.Now()
	s := &Snapshot{Schema: 1, PID: os.Getpid(), Command: command, Time: now, Uptime: now.Sub(began).Seconds(),
		Ports: make([]PortCounters, 0, len(ports))}
	names := map[string]int{}
	for _, p := range ports {
		c := p.read()
		if names[c.Name]++; names[c.Name] > 1 { // metrics of two ports must differ in their labels
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
	for i, split := range state.Splits {
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
