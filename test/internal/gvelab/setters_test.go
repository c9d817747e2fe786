package gvelab

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
)

// The guest changes settings of a gVNIC under traffic, as ethtool and ip do, and sets each back.
//
// Invariant: nic/gve: The setters of the kernel's driver that the test lists work under traffic.
func TestSettersUnderTraffic(t *testing.T) {
	testkit.Boots(t)
	d := describe()
	d.Guests[0].NICs[0].Timestamps = true
	b := newBenchWith(t, d, 1, 4*time.Minute, labtest.Log(t), nil)
	b.do("links are up, streams run", OpSetup, Args{})
	b.do("everything was set, and set back", OpSetters, Args{})
	b.do("all streams flow, of device memory too", OpTraffic, Args{Bytes: 1 << 20})
	b.counted()
	b.judge()
	b.do("reset", OpReset, Args{}) // its log line would count as a complaint
	_, bad, err := b.log()
	testkit.OK(t, err)
	if len(bad) != 1 || !strings.Contains(bad[0].Text, "Performing reset") {
		t.Errorf("the kernel's log: %s", text(bad))
	}
	for _, p := range b.lab.Ports() {
		if n := p.Device().(interface{ Failures() uint64 }).Failures(); n != 0 {
			t.Errorf("%d queues of %s have stopped for an error", n, p.Name)
		}
	}
	testkit.NoError(t, b.PowerOff(t.Context()))
}

// counted waits, 30 s at most, until ethtool -S shows the NIC's counts of dropped frames, which must not all be 0: the
// driver has stopped queues during traffic.
func (b *bench) counted() {
	b.Helper()
	port := b.lab.Port(0).Device().(interface{ Port() *nic.Port }).Port()
	var got, want map[string]uint64
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); { // the NIC reports a change to the driver later
		want = make(map[string]uint64)
		total := uint64(0)
		for q := range 4 {
			rx, _ := port.QueueCounters(q)
			want[fmt.Sprintf("rx_queue_drop_cnt[%d]", q)] = rx.Drops
			total += rx.Drops
		}
		testkit.OK(b, b.call(OpStats, nil, &got))
		same := total > 0
		for name, n := range want {
			same = same && got[name] == n
		}
		if same {
			b.ok("ethtool -S says %d drops, as the NIC does", total)
			return
		}
	}
	b.Errorf("ethtool -S says %v, the NIC %v", got, want)
}
