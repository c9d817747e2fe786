package gvelab

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/testkit"
)

// The guest's kernel removes a gVNIC under traffic and finds it again.
//
// Invariant: nic/gve: A device that the guest removes and finds again, under traffic, works as before, and
// leaves nothing.
func TestRemovedAndFoundAgainUnderTraffic(t *testing.T) {
	testkit.Boots(t)
	for _, iommu := range []bool{false, true} {
		t.Run(fmt.Sprintf("iommu=%t", iommu), func(t *testing.T) {
			d := describe()
			d.Guests[0].IOMMU = iommu
			b := newBenchWith(t, d, 1, 4*time.Minute, labtest.Log(t), nil)
			b.do("links are up, streams run", OpSetup, Args{})
			b.do("a queue was bound", OpCycles, Args{Times: 1})
			there := b.holds(iommu)
			var away held
			for i := range 10 {
				b.do("eth0's device is removed", OpRemove, Args{Up: i%2 == 0})
				now := b.holds(iommu)
				if i == 0 {
					away = now
					if away.fds >= there.fds || away.goroutines >= there.goroutines {
						t.Errorf("removed, it has %+v, of %+v", away, there)
					}
				}
				b.settles("removed", iommu, away)
				if n := len(b.lab.Port(0).Space().Regions()); iommu && n != 0 {
					t.Errorf("removed, it has %d maps", n)
				}
				b.do("eth0's device has come back", OpRescan, Args{})
				b.settles("found again", iommu, there)
				testkit.Equal(t, "its addresses are translated", b.lab.Port(0).Translated(), iommu)
			}
			b.do("all streams flow", OpTraffic, Args{Bytes: 1 << 20})
			b.judge()
			for _, p := range b.lab.Ports() {
				if n := p.Device().(interface{ Failures() uint64 }).Failures(); n != 0 {
					t.Errorf("%d queues of %s have stopped for an error", n, p.Name)
				}
			}
			testkit.NoError(t, b.PowerOff(t.Context()))
		})
	}
}

// held counts the memory regions that the guest's NICs can reach (maps), and the descriptors and goroutines of this
// process.
type held struct{ maps, fds, goroutines int }

// holds returns how many maps, descriptors and goroutines there are now. It leaves maps 0 behind an IOMMU, as the
// kernel keeps some buffers mapped.
func (b *bench) holds(iommu bool) (h held) {
	h.goroutines = runtime.NumGoroutine()
	h.fds = len(testkit.Must(os.ReadDir("/proc/self/fd"))(b))
	if !iommu {
		for _, p := range b.lab.Ports() {
			h.maps += len(p.Space().Regions())
		}
	}
	return h
}

// settles waits until the host holds exactly want.
func (b *bench) settles(what string, iommu bool, want held) {
	b.Helper()
	var h held
	defer func() {
		if h != want {
			b.Logf("%s: the host holds %+v, not %+v", what, h, want)
		}
	}()
	testkit.Eventually(b.T, what, func() bool { h = b.holds(iommu); return h == want })
}
