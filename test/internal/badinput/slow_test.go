package badinput

import (
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

type receiver struct {
	mac    net.HardwareAddr
	ip     [4]byte
	say    func(frame []byte)  // sends a frame
	post   func(n uint64)      // posts n buffers
	used   func() (all uint64) // all buffers that came back so far
	space  uint64              // maximum number of posted buffers
	posted uint64              // buffers posted so far; only give uses it, on one goroutine at a time
	rate   atomic.Pointer[rate]
}

// rate returns how many of free buffers a receiver posts now.
type rate func(now time.Time, free uint64) (buffers uint64)

func quick(_ time.Time, free uint64) uint64 { return free }

func perSecond(n int) rate {
	start, given := time.Now(), 0
	return func(now time.Time, free uint64) uint64 {
		k := int(now.Sub(start)*time.Duration(n)/time.Second) - given
		k = min(max(k, 0), int(free))
		given += k
		return uint64(k)
	}
}

// paused posts nothing in the last 100 ms of each second.
func paused(now time.Time, free uint64) uint64 {
	if now.Nanosecond() > 9e8 {
		return 0
	}
	return free
}

// run starts a goroutine that posts buffers until stop is called, or t ends.
func (r *receiver) run(t *testing.T) (stop func()) {
	r.give(time.Now()) // the device starts the ring at the first buffer
	end := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(100 * time.Microsecond)
		defer tick.Stop()
		for {
			select {
			case now := <-tick.C:
				r.give(now)
			case <-end:
				return
			}
		}
	})
	stop = sync.OnceFunc(func() {
		close(end)
		done.Wait()
	})
	t.Cleanup(stop)
	return stop
}

func (r *receiver) give(now time.Time) {
	if n := (*r.rate.Load())(now, r.space-(r.posted-r.used())); n > 0 {
		r.posted += n
		r.post(n)
	}
}

func (r *receiver) set(to rate) *receiver {
	r.rate.Store(&to)
	return r
}

func (s *server) slowReceiver(t *testing.T, model string, port int) *receiver {
	t.Helper()
	var all uint64 // buffers that came back so far
	r := &receiver{mac: macOf(port), ip: addrOf(port), space: 255}
	if model == "gve" {
		g := s.gve(t, port)
		t.Cleanup(func() { _ = g.Close() })
		tx, rx := g.up(256, 256)
		buf := g.alloc(packetLen)
		r.say = func(f []byte) { g.send(tx, f) }
		r.post = func(n uint64) {
			for range n {
				g.buffer(rx, buf)
			}
			g.show(rxDoorbells, rx)
		}
		r.used = func() uint64 {
			for g.received(rx) != nil {
				all++
			}
			return all
		}
		return r
	}
	a := s.attacker(t, port).connect().share()
	rx, tx := a.start(0, 256), a.start(1, 256)
	buf := a.alloc(4096)
	for i := range uint64(256) {
		a.put(rx.desc+16*i, buf, 4096, flagWrite, 0)
	}
	head := uint16(0)
	r.say = func(f []byte) { a.send(tx, [12]byte{}, f) }
	r.post = func(n uint64) {
		var hs []uint16
		for range n {
			hs = append(hs, head)
			head = (head + 1) % 256
		}
		a.offer(rx, hs...)
	}
	r.used = func() uint64 {
		all += uint64(a.usedIdx(rx) - uint16(all))
		return all
	}
	return r
}

// announce sends a frame, from which switch and gateway learn the port's addresses.
func announce(say func(frame []byte), port int) {
	say((&world{}).arp(&attacker{mac: macOf(port)}, uint32(port)))
}

// alternate sends the frames in turn for the time d.
func alternate(t *testing.T, from *guest, d time.Duration, frames ...[]byte) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		for _, f := range frames {
			for n := 0; n == 0; runtime.Gosched() {
				var err error
				if n, err = from.transmit(f); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// slowEnv is the environment variable that enables the measurements of slow receivers.
const slowEnv = "BADINPUT_SLOW"

// A measurement lasts measure, after traffic of the length before.
const (
	pairs   = 15
	measure = 400 * time.Millisecond
	before  = 200 * time.Millisecond
)

// A receiver that keeps up with its frames gets about 90 % or more of its share of a sender's frames beside a receiver
// that posts 50, 0 or 1,000 buffers a second.
func TestOthersKeepTheirShare(t *testing.T) {
	if os.Getenv(slowEnv) == "" {
		t.Skip("takes minutes: test/23-slow.sh")
	}
	for _, model := range []string{"virtio", "gve", "gateway"} {
		for _, buffers := range []int{50, 0, 1000} {
			t.Run(model+"/"+strconv.Itoa(buffers), func(t *testing.T) { keepsShare(t, model, buffers) })
		}
	}
}

func keepsShare(t *testing.T, model string, buffers int) {
	nic, host := model, testkit.Must(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	defer func() { _ = host.Close() }()
	if model == "gateway" {
		nic = "virtio"
	}
	port := host.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	s := serve(t, 4, "--nic", nic, "--host-ports", strconv.Itoa(int(port)))
	var from, to *guest
	if nic == "gve" {
		from, to = s.gveGuest(0), s.gveGuest(1)
	} else {
		from, to = s.attach(0), s.attach(1)
	}
	other, slow := s.slowReceiver(t, nic, 2).set(quick), s.slowReceiver(t, nic, 3).set(quick)
	defer other.run(t)()
	defer slow.run(t)()
	say := func(f []byte) { _ = testkit.Must(to.transmit(f))(t) }
	tell := func() {
		announce(say, 1)
		announce(other.say, 2)
		announce(slow.say, 3)
	}
	tell()
	send := func(d time.Duration, beside *receiver) {
		alternate(t, from, d, frameTo(beside.mac, from.mac), frameTo(to.mac, from.mac))
	}
	if model == "gateway" {
		flow := func(say func([]byte), n int) *net.UDPAddr {
			say((&attacker{mac: macOf(n), port: n}).udp(gatewayAddr, 7, port, []byte("here")))
			testkit.OK(t, host.SetReadDeadline(time.Now().Add(testkit.Patience)))
			_, addr, err := host.ReadFromUDP(make([]byte, 100))
			testkit.OK(t, err)
			return addr
		}
		flows := map[*receiver]*net.UDPAddr{other: flow(other.say, 2), slow: flow(slow.say, 3)}
		first := flow(say, 1)
		data := make([]byte, 1000)
		send = func(d time.Duration, beside *receiver) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				for _, a := range []*net.UDPAddr{flows[beside], first} {
					_ = testkit.Must(host.WriteToUDP(data, a))(t)
				}
			}
		}
	}
	slow.set(perSecond(buffers))
	rate := func(beside *receiver) float64 {
		tell()
		send(before, beside)
		start, count := time.Now(), to.count.Load()
		send(measure, beside)
		return float64(to.count.Load()-count) / time.Since(start).Seconds()
	}
	var ratios, same []float64
	for i := range pairs {
		a, b := rate(other), 0.0
		if b = rate(slow); i%2 == 1 { // the order alternates as well
			a = rate(other)
		}
		ratios = append(ratios, b/a)
		same = append(same, rate(other)/a)
		t.Logf("%.0f frames/s to it beside one that takes all, %.0f beside the slow one", a, b)
	}
	low, median, high := interval(ratios)
	l, m, h := interval(same)
	t.Logf("%s, %d buffers a second: %.2f of its share (95 %%: %.2f to %.2f); A/A %.2f (%.2f to %.2f)", model, buffers,
		median, low, high, m, l, h)
	if !(median >= 0.95*0.9 && high >= 0.9) { // fails for NaN too: no frames arrived
		t.Errorf("%.2f of its share (%.2f to %.2f), wanted 0.9", median, low, high)
	}
}

// interval returns the median of 15 values, and the ends of its 95 % interval.
func interval(xs []float64) (low, median, high float64) {
	slices.Sort(xs)
	return xs[3], xs[7], xs[11]
}

// Without a third guest no frame is lost when the receiver pauses.
func TestPausesLoseNothing(t *testing.T) {
	if os.Getenv(slowEnv) == "" {
		t.Skip("takes a while: test/23-slow.sh")
	}
	for _, model := range []string{"virtio", "gve"} {
		t.Run(model, func(t *testing.T) {
			s := serve(t, 2, "--nic", model, "--gateway", "off")
			var from *guest
			if model == "gve" {
				from = s.gveGuest(0)
			} else {
				from = s.attach(0)
			}
			to := s.slowReceiver(t, model, 1).set(quick)
			announce(to.say, 1)
			stop := to.run(t)
			to.set(paused)
			sent := uint64(0)
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
				n, err := from.transmit(frameTo(to.mac, from.mac))
				testkit.OK(t, err)
				if sent += uint64(n); n == 0 {
					runtime.Gosched()
				}
			}
			to.set(quick)
			got := uint64(0)
			testkit.Eventually(t, "all frames come", func() bool {
				stop()
				to.give(time.Now())
				got = to.used()
				return got >= sent
			})
			t.Logf("%s: %d frames sent, %d came", model, sent, got)
		})
	}
}
