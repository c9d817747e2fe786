package gateway

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/dns/dnsmessage"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// floodShares is the environment variable that enables TestFloodsLeaveShares, which measures speed and takes minutes
// (test/56-floods.sh).
const floodShares = "VNIC_FLOODS"

// flooding are goroutines that send frames, or only use CPU time, until end is called.
type flooding struct {
	stop atomic.Bool
	wg   sync.WaitGroup
}

func (f *flooding) end() {
	f.stop.Store(true)
	f.wg.Wait()
}

// flood sends frames from r's port, by one goroutine for each queue, until end is called: frame(sender, i) makes each,
// and i counts up from another start in each goroutine.
func (f *flooding) flood(r *raw, queues int, frame func(r *raw, i int) []byte) {
	for q := range queues {
		b := make([]byte, slotSize)
		sender := &raw{t: r.t, mac: r.mac, link: r.link, slot: &outSlot{frame: b, mem: dma.NewBuffer(b, dma.Wire)},
			w: wire.NewWorker(), got: r.got}
		f.wg.Go(func() {
			for i := q << 20; !f.stop.Load(); i++ {
				sender.send(frame(sender, i))
			}
		})
	}
}

func (f *flooding) spin(threads int) {
	for range threads {
		f.wg.Go(func() {
			runtime.LockOSThread()
			for !f.stop.Load() {
			}
		})
	}
}

// connections returns how many connections with 64 KiB in each direction a guest completes per second.
func (v *guest) connections(to netip.AddrPort, d time.Duration) float64 {
	data, begin, n := noise(64<<10, 1), time.Now(), 0
	for ; n == 0 || time.Since(begin) < d; n++ {
		c := v.mustDial(to)
		testkit.OK(v.t, exchange(c, data))
		c.Close()
	}
	return float64(n) / time.Since(begin).Seconds()
}

// leased reports whether a client gets a lease with at most one retry of each message (RFC 2131, 4.1).
func (r *raw) leased() bool {
	ask := func(kind dhcpv4.MessageType, mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
		for range 2 {
			m := testkit.Must(dhcpv4.New(append(mods, dhcpv4.WithHwAddr(r.mac[:]), dhcpv4.WithMessageType(kind))...))(r.t)
			r.send(r.udp4(broadcastMAC, netip.AddrPortFrom(netip.IPv4Unspecified(), 68), netip.AddrPortFrom(broadcast4, 67),
				m.ToBytes()))
			for timeout := time.After(3 * time.Second); ; {
				var b []byte
				select {
				case b = <-r.got:
				case <-timeout:
				}
				if b == nil {
					break
				}
				if len(b) > 42 && b[12] == 8 && b[13] == 0 && b[23] == 17 {
					if a, err := dhcpv4.FromBytes(b[42:]); err == nil && a.TransactionID == m.TransactionID {
						return a
					}
				}
			}
		}
		return nil
	}
	offer := ask(dhcpv4.MessageTypeDiscover)
	if offer == nil {
		return false
	}
	ack := ask(dhcpv4.MessageTypeRequest, dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier())))
	return ack != nil && ack.MessageType() == dhcpv4.MessageTypeAck
}

// Beside a flood a guest makes at least 80 % as many connections as beside threads that only spin (the median of
// pairs), and all clients get leases.
func TestFloodsLeaveShares(t *testing.T) {
	if os.Getenv(floodShares) == "" {
		t.Skip("it judges speed, and takes minutes: set " + floodShares)
	}
	const (
		pairs  = 15
		window = 400 * time.Millisecond
		leases = 20
	)
	elsewhere := netip.MustParseAddr("192.0.2.7")
	resolver := netip.AddrPortFrom(prefix4.Addr(), portDNS)
	for _, c := range []struct {
		name  string
		frame func(r *raw, i int) []byte
	}{
		{"DNS", func(r *raw, _ int) []byte {
			return r.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(r.mac[5]), 1024), resolver, query("a.vnic.", dnsmessage.TypeA))
		}},
		{"UDP to nobody", func(r *raw, _ int) []byte {
			return r.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(r.mac[5]), 1024), own4(9), make([]byte, 32))
		}},
		{"new flows", func(r *raw, i int) []byte {
			from := netip.AddrPortFrom(addr4Of(r.mac[5]), uint16(1024+i%50000))
			return r.udp4(gatewayMAC, from, netip.AddrPortFrom(elsewhere, 9), make([]byte, 32))
		}},
		{"SYN", func(r *raw, i int) []byte {
			return r.syn(netip.AddrPortFrom(addr4Of(r.mac[5]), uint16(1024+i%50000)), netip.AddrPortFrom(elsewhere, 9))
		}},
		{"ARP", func(r *raw, _ int) []byte { return r.arp(1, addr4Of(r.mac[5]), prefix4.Addr(), wire.MAC{}) }},
		{"DHCP", func(r *raw, i int) []byte {
			m, _ := dhcpv4.New(dhcpv4.WithHwAddr(r.mac[:]), dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover))
			return r.udp4(broadcastMAC, netip.AddrPortFrom(netip.IPv4Unspecified(), 68), netip.AddrPortFrom(broadcast4, 67),
				m.ToBytes())
		}},
	} {
		for _, queues := range [][]int{{8}, {4, 4}} {
			t.Run(fmt.Sprintf("%s, queues %d", c.name, queues), func(t *testing.T) {
				w := newRig(t, func(o *Options) { o.Hosts = nil })
				v, to := w.guest(1), own4(echoServer(t, "tcp4").Port())
				var hostile []*raw
				for i := range queues {
					hostile = append(hostile, w.raw(byte(10+i), wire.LinkOptions{Storm: 5000}))
					hostile[i].meet()
				}
				begin := func(spins bool) *flooding {
					f := new(flooding)
					for i, r := range hostile {
						if spins {
							f.spin(queues[i])
						} else {
							f.flood(r, queues[i], c.frame)
						}
					}
					return f
				}
				v.connections(to, window/5)
				var ratios []float64
				for i := range pairs {
					var rate [2]float64
					for k := range rate {
						spins := (i+k)%2 == 1
						f := begin(spins)
						got := v.connections(to, window)
						f.end()
						if spins {
							rate[1] = got
						} else {
							rate[0] = got
						}
					}
					ratios = append(ratios, rate[0]/rate[1])
				}
				f := begin(false)
				had := 0
				for i := range leases {
					if w.raw(byte(100 + i)).leased() {
						had++
					}
				}
				f.end()
				slices.Sort(ratios)
				t.Logf("%-14s queues %d: %.2f of what is left beside spinning threads (%.2f to %.2f); %d of %d leases", c.name,
					queues, ratios[pairs/2], ratios[0], ratios[pairs-1], had, leases)
				if ratios[pairs/2] < 0.8 || had < leases {
					t.Error("an innocent guest does not get its share")
				}
			})
		}
	}
}
