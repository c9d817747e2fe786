package nic_test

import (
	"net/netip"
	"runtime"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// Counters of a sending port include each packet that has reached its receiver before the counters are read.
func TestWhatHasComeIsCounted(t *testing.T) {
	a, b := pair(t, nic.SenderOptions{})
	id, err := a.port.AddFlowCounter(control.FlowCounter{Proto: splitter.ProtoUDP,
		Local: netip.MustParseAddrPort("10.0.0.1:1000"), Remote: netip.MustParseAddrPort("10.0.0.2:2000")})
	testkit.OK(t, err)
	// These counts rise by one with each packet from a to b.
	readers := map[string]func() uint64{
		"PortCounters": func() uint64 {
			c, _ := a.port.PortCounters()
			return c.Tx.Packets
		},
		"QueueCounters": func() uint64 {
			_, tx := a.port.QueueCounters(0)
			return tx.Packets
		},
		"QueueTraffic": func() uint64 {
			_, tx := a.port.QueueTraffic(0)
			return tx.Buffers / 2 // a packet has one buffer for its headers and one for its payload
		},
		"ReadFlowCounter": func() uint64 {
			c, _ := a.port.ReadFlowCounter(id)
			return c.Tx.Packets
		},
		"FlowAccount": func() (n uint64) {
			for _, q := range a.port.FlowAccount() {
				for _, r := range q.Rows {
					n += r.Packets
				}
			}
			return n
		},
	}
	a.start()
	sent := 0
	for name, read := range readers {
		before, after := read(), make(chan uint64, 1)
		b.rx.Lock()
		b.rx.meets = func() {
			go func() { after <- read() }()
			for range 1000 { // lets the reader run before a counts the packet
				runtime.Gosched()
			}
		}
		b.rx.Unlock()
		b.rx.postNew(1)
		sent++
		a.sendTo(b, sent)
		if n := <-after - before; n != 1 {
			t.Errorf("%s: %d packets more after one that has come", name, n)
		}
		b.receives(a, sent)
	}
}
