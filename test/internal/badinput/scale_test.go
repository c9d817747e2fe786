package badinput

import (
	"math/bits"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// scaleEnv is the environment variable that enables the measurements of how costs grow.
const scaleEnv = "BADINPUT_SCALE"

// scaleColdEnv is the environment variable that makes each receiver of portsFromOne use scaleRing buffers.
const scaleColdEnv = "BADINPUT_SCALE_COLD"

// Bounds of growth (test/27-scale.sh).
const (
	mostGrowth = 1.25
	mostStep   = 1.10
)

const (
	scaleTime  = 300 * time.Millisecond
	scaleWarm  = 20 * time.Millisecond // traffic before the measurement
	scaleLeast = 10000                 // the least frames of a measurement
	scaleRing  = 256                   // frames that each transmit queue has in progress
	scaleLen   = 64                    // bytes of a frame
	rulePort   = 10000                 // port of the first rule
	// scaleFeatures has features that Linux accepts.
	scaleFeatures = features | 1<<1 | 1<<7 | 1<<8 | 1<<11 | 1<<12
)

// end is the driver's end of a ring whose chains never change place.
type end interface {
	look() (n int) // chains that came back since the last call
	show(n int)    // makes n more chains available to the device
	out() int      // chains that the device has
	spread(k int)  // makes receive chains use k buffers in turn
}

// loop is a virtqueue. Chain i is always descriptor i.
type loop struct {
	a           *attacker
	r           *ring
	bufs        uint64 // one page for each chain
	shown, seen uint16
	kicked      time.Time
}

func (a *attacker) loop(i int, flags uint16, size int) *loop {
	a.t.Helper()
	l := &loop{a: a, r: a.start(i, uint16(size)), bufs: a.alloc(uint64(size) * 4096)}
	for i := range uint64(size) {
		le.PutUint16(a.ram[l.r.avail+4+2*i:], uint16(i))
		a.put(l.r.desc+16*i, l.bufs+4096*i, 2048, flags, 0)
	}
	return l
}

func (l *loop) look() int {
	used := uint16(dma.LoadWord(l.a.ram[l.r.used:]) >> 16)
	n := used - l.seen
	l.seen = used
	return int(n)
}

func (l *loop) out() int { return int(l.shown - l.seen) }

func (l *loop) spread(k int) {
	for i := range uint64(l.r.size) {
		le.PutUint64(l.a.ram[l.r.desc+16*i:], l.bufs+4096*(i%uint64(k)))
	}
}

// show makes n more chains available, and kicks if needed. With n 0 it kicks at most once a millisecond: an
// earlier call may have read the device's flag too early.
func (l *loop) show(n int) {
	if l.shown += uint16(n); n > 0 {
		dma.StoreWord(l.a.ram[l.r.avail:], uint32(l.shown)<<16|1) // VIRTQ_AVAIL_F_NO_INTERRUPT: we poll
	}
	if dma.LoadWord(l.a.ram[l.r.used:])&1 != 0 || l.shown == l.seen { // VIRTQ_USED_F_NO_NOTIFY
		return
	}
	if now := time.Now(); n > 0 || now.Sub(l.kicked) > time.Millisecond {
		l.kicked = now
		_, _ = unix.Write(l.r.kick, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

func (l *loop) set(i int, frame []byte) {
	b := l.a.ram[l.bufs+4096*uint64(i):]
	clear(b[:12]) // virtio_net_hdr
	if h := (splitter.Headers{}); splitter.Parse(frame, uint32(len(frame)), &h) == nil && h.Class == splitter.TCP {
		start, offset, _ := splitter.CsumPlace(&h)
		b[0] = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
		le.PutUint16(b[6:], start)
		le.PutUint16(b[8:], offset)
	}
	n := copy(b[12:], frame)
	l.a.put(l.r.desc+16*uint64(i), l.bufs+4096*uint64(i), uint32(12+n), 0, 0)
}

// say sends one frame, and waits until its chain comes back.
func (l *loop) say(frame []byte) {
	l.a.t.Helper()
	l.set(int(l.shown%scaleRing), frame)
	l.show(1)
	testkit.Eventually(l.a.t, "the frame comes back", func() bool { l.show(0); return l.look() > 0 })
}

// gveLoop is a queue of a gVNIC.
type gveLoop struct {
	g       *gveClient
	q       *gveQueue
	bell    int
	came    func() bool
	bufs    uint64
	each    int // show rings the doorbell when at least this many chains are pending
	pending int // chains made available since the last doorbell
	has     int // chains that the device has, and pending ones
}

func (l *gveLoop) spread(k int) {
	for i := range 2 * scaleRing {
		le.PutUint64(l.g.bytesAt(l.q.ring+uint64(i)*32+8, 8), l.bufs+uint64(i%k)*packetLen)
	}
}

func (l *gveLoop) look() (n int) {
	for l.came() {
		n++
	}
	l.has -= n
	return n
}

func (l *gveLoop) out() int { return l.has - l.pending }

func (l *gveLoop) show(n int) {
	l.has += n
	l.q.posted += uint32(n)
	if l.pending += n; l.pending >= l.each {
		l.pending = 0
		l.g.show(l.bell, l.q)
	}
}

type scaleGuest struct {
	port   int
	tx, rx []end
	set    func(queue, i int, frame []byte) // puts a frame into chain i of a transmit queue; gve: and i+scaleRing
	say    func(frame []byte)
}

func (s *server) scaleGuest(t *testing.T, model string, port, pairs, buffers int) *scaleGuest {
	t.Helper()
	g := &scaleGuest{port: port}
	if model == "gve" {
		s.scaleGVE(t, g)
	} else {
		a := s.attacker(t, port).connectWith(scaleFeatures).share()
		var tx []*loop
		for i := range pairs {
			rx := a.loop(2*i, flagWrite, buffers)
			rx.show(buffers)
			tx = append(tx, a.loop(2*i+1, 0, scaleRing))
			g.rx, g.tx = append(g.rx, rx), append(g.tx, tx[i])
		}
		g.set = func(q, i int, f []byte) { tx[q].set(i, f) }
		g.say = tx[0].say
	}
	announce(g.say, port)
	return g
}

func (s *server) scaleGVE(t *testing.T, g *scaleGuest) {
	t.Helper()
	c := s.gve(t, g.port)
	t.Cleanup(func() { _ = c.Close() })
	tq, rq := c.up(2*scaleRing, 2*scaleRing)
	bufs, frames := c.alloc(2*scaleRing*packetLen), c.alloc(2*scaleRing*2048)
	for i := range uint64(2 * scaleRing) {
		c.buffer(rq, bufs+i*packetLen)
	}
	rq.posted = 0
	tx := &gveLoop{g: c, q: tq, bell: txDoorbells, each: 1, came: func() bool { return c.sent(tq) }}
	rx := &gveLoop{g: c, q: rq, bell: rxDoorbells, bufs: bufs, each: 32,
		came: func() bool { return c.received(rq) != nil }}
	rx.show(2*scaleRing - 1)
	put := func(posted uint32, f []byte) {
		addr := frames + uint64(posted%(2*scaleRing))*2048
		c.put(addr, f)
		q := *tq
		q.posted = posted
		c.packet(&q, addr, len(f), true)
	}
	g.tx, g.rx = []end{tx}, []end{rx}
	g.set = func(_, i int, f []byte) {
		tx.each = 64 // from here on many chains are always available
		put(uint32(i), f)
		put(uint32(i+scaleRing), f)
	}
	g.say = func(f []byte) {
		put(tq.posted, f)
		tx.show(1)
		testkit.Eventually(t, "the frame comes back", func() bool { return tx.look() > 0 })
	}
}

// scaleFrame returns a frame whose TCP checksum is partial: loop.set makes the device complete it.
func scaleFrame(from, to int, srcPort, dstPort uint16) []byte {
	b := make([]byte, scaleLen)
	copy(b, macOf(to))
	copy(b[6:], macOf(from))
	be.PutUint16(b[12:], splitter.EtherTypeIPv4)
	ip := b[splitter.EthLen:]
	ip[0], ip[8], ip[9] = 0x45, 64, splitter.ProtoTCP
	be.PutUint16(ip[2:], scaleLen-splitter.EthLen)
	src, dst := addrOf(from), addrOf(to)
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	tcp := ip[20:]
	be.PutUint16(tcp, srcPort)
	be.PutUint16(tcp[2:], dstPort)
	tcp[12], tcp[13] = 5<<4, splitter.ACK
	var h splitter.Headers
	_ = splitter.Parse(b, scaleLen, &h)
	splitter.FixIPv4(&h, b)
	splitter.FixPartial(&h, b, scaleLen-splitter.EthLen-40)
	return b
}

// arm is one size of a measurement.
type arm struct {
	size    int
	set     func()
	tx, rx  []end
	buffers int // how many buffers each receiving queue gets frames in
}

// run measures the processor time that the processes pids use for a frame, in nanoseconds.
func (a *arm) run(t *testing.T, s *server, pids []int) (perFrame float64) {
	t.Helper()
	a.set()
	for _, e := range a.rx {
		e.spread(a.buffers)
	}
	for _, e := range a.tx {
		e.show(scaleRing)
	}
	pump := func(again bool) (n int) {
		var back [64]int
		for i, e := range a.tx {
			back[i] = e.look()
			n += back[i]
		}
		for _, e := range a.rx { // post buffers before more frames are sent
			e.show(e.look())
		}
		for i, e := range a.tx {
			if !again {
				back[i] = 0
			}
			e.show(back[i])
		}
		return n
	}
	for end := time.Now().Add(scaleWarm); time.Now().Before(end); {
		pump(true)
	}
	frames, before := 0, spent(t, pids)
	until := time.Now().Add(scaleTime)
	testkit.Eventually(t, "frames come", func() bool { // even if other processes use the processors
		for n := pump(true); n > 0 || time.Now().Before(until); n = pump(true) {
			if frames += n; frames >= scaleLeast && !time.Now().Before(until) {
				return true
			}
		}
		return false
	})
	perFrame = float64(spent(t, pids)-before) / float64(frames)
	testkit.Eventually(t, "all frames come", func() bool {
		pump(false)
		return !slices.ContainsFunc(a.tx, func(e end) bool { return e.out() > 0 })
	})
	return perFrame
}

func spent(t *testing.T, pids []int) (sum time.Duration) {
	t.Helper()
	for _, pid := range pids {
		var now unix.Timespec
		testkit.OK(t, unix.ClockGettime(int32(^pid<<3|2), &now)) // clock_getcpuclockid(3)
		sum += time.Duration(now.Nano())
	}
	return sum
}

// The processor time for a small frame grows by no more than mostGrowth and mostStep, within compare's tolerance, where
// compare judges it.
func TestCostsGrowSlowly(t *testing.T) {
	if os.Getenv(scaleEnv) == "" {
		t.Skip("takes minutes: test/27-scale.sh")
	}
	t.Run("virtio/ports", func(t *testing.T) { portsInUse(t, "virtio") })
	t.Run("virtio/fan", func(t *testing.T) { portsFromOne(t, "virtio") })
	t.Run("virtio/queues", queuesInUse)
	t.Run("virtio/rules", rulesInUse)
	t.Run("gve/ports", func(t *testing.T) { portsInUse(t, "gve") })
	t.Run("gve/fan", func(t *testing.T) { portsFromOne(t, "gve") })
}

// In portsInUse each port in use sends to the next, and the last one to the first.
func portsInUse(t *testing.T, model string) {
	s := serve(t, 64, "--nic", model, "--gateway", "off", "--queues", "1")
	var guests []*scaleGuest
	var tx, rx []end
	for port := range 64 {
		g := s.scaleGuest(t, model, port, 1, scaleRing)
		guests, tx, rx = append(guests, g), append(tx, g.tx[0]), append(rx, g.rx[0])
	}
	var arms []*arm
	for n := 2; n <= 64; n *= 2 {
		arms = append(arms, &arm{size: n, tx: tx[:n], rx: rx[:n], buffers: scaleRing, set: func() {
			for port, g := range guests[:n] {
				f := scaleFrame(port, (port+1)%n, 1000, 2000)
				for i := range scaleRing {
					g.set(0, i, f)
				}
			}
		}})
	}
	compare(t, s, arms, true)
}

// The result of portsFromOne is not judged: test/27-scale.sh has the reason.
func portsFromOne(t *testing.T, model string) {
	s := serve(t, 64, "--nic", model, "--gateway", "off", "--queues", "1")
	from := s.scaleGuest(t, model, 0, 1, scaleRing)
	cold := os.Getenv(scaleColdEnv)
	var rx []end
	for port := 1; port < 64; port++ {
		ring := scaleRing
		if cold == "" { // with virtio, smaller rings for ports that only the larger sizes use
			ring = min(ring, 2*scaleRing>>(bits.Len(uint(port))-1))
		}
		rx = append(rx, s.scaleGuest(t, model, port, 1, ring).rx...)
	}
	var arms []*arm
	for n := 2; n <= 64; n *= 2 {
		buffers := scaleRing
		if cold == "" {
			buffers /= n - 1
		}
		arms = append(arms, &arm{size: n, tx: from.tx, rx: rx[:n-1], buffers: buffers, set: func() {
			for i := range scaleRing {
				from.set(0, i, scaleFrame(0, 1+i/(scaleRing/(n-1))%(n-1), 1000, 2000))
			}
		}})
	}
	compare(t, s, arms, false)
}

func queuesInUse(t *testing.T) {
	const most = 8
	s := serve(t, 2, "--gateway", "off", "--queues", strconv.Itoa(most))
	from, to := s.scaleGuest(t, "virtio", 0, most, scaleRing), s.scaleGuest(t, "virtio", 1, most, scaleRing)
	to.rules(t, most, func(i int) (port, queue uint16) { return uint16(rulePort + i), uint16(i) })
	var arms []*arm
	for n := 1; n <= most; n *= 2 {
		arms = append(arms, &arm{size: n, tx: from.tx[:n], rx: to.rx[:n], buffers: scaleRing / n, set: func() {
			for q := range n {
				for i := range scaleRing {
					from.set(q, i, scaleFrame(0, 1, 1000, uint16(rulePort+q)))
				}
			}
		}})
	}
	compare(t, s, arms, true)
}

// In rulesInUse successive frames are of different flows.
func rulesInUse(t *testing.T) {
	sizes := []int{1, 4, 16, 64, 256, 1024}
	s := serve(t, 1+len(sizes), "--gateway", "off", "--queues", "1")
	from := s.scaleGuest(t, "virtio", 0, 1, scaleRing)
	var arms []*arm
	for k, n := range sizes {
		to := s.scaleGuest(t, "virtio", 1+k, 1, scaleRing)
		to.rules(t, n, func(i int) (port, queue uint16) { return uint16(rulePort + i), 0 })
		arms = append(arms, &arm{size: n, tx: from.tx, rx: to.rx, buffers: scaleRing, set: func() {
			for i := range scaleRing {
				from.set(0, i, scaleFrame(0, to.port, uint16(1000+i), uint16(rulePort+i*n/scaleRing)))
			}
		}})
	}
	compare(t, s, arms, true)
}

func (g *scaleGuest) rules(t *testing.T, n int, rule func(i int) (port, queue uint16)) {
	t.Helper()
	rx := g.rx[0].(*loop)
	var c *control.Client
	stop := make(chan struct{})
	ended := make(chan struct{})
	c = control.NewClient(sayer(g.say), control.ClientOptions{MAC: [6]byte(macOf(g.port))})
	go func() {
		defer close(ended)
		for {
			for n := rx.look(); n > 0; n-- {
				i := uint64(rx.seen-uint16(n)) % scaleRing
				length := le.Uint32(rx.a.ram[rx.r.used+4+8*i+4:])
				c.Receive(rx.a.ram[rx.bufs+4096*i:][12:length])
				rx.show(1)
			}
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Microsecond):
			}
		}
	}()
	for i := range n {
		port, queue := rule(i)
		_, err := c.AddFlow(t.Context(), control.FlowRule{Proto: splitter.ProtoTCP, Queue: queue, DstPort: port,
			Dst: netip.AddrFrom4(addrOf(g.port))})
		testkit.OK(t, err)
	}
	close(stop)
	<-ended
	c.Close()
}

type sayer func(frame []byte)

func (say sayer) Send(frame []byte) error { say(frame); return nil }

// compare measures the arms in turn, and logs how the processor time for a frame grows. If judged is set, it fails the
// test for a ratio that is too large.
func compare(t *testing.T, s *server, arms []*arm, judged bool) {
	t.Helper()
	pids := s.processes(t)
	costs, again := make([][]float64, len(arms)), []float64{}
	for i := range pairs {
		order := slices.Clone(arms)
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, a := range order {
			k := slices.Index(arms, a)
			costs[k] = append(costs[k], a.run(t, s, pids))
		}
		again = append(again, arms[0].run(t, s, pids))
	}
	hold := func(name string, bound float64, a, b []float64) {
		var ratios []float64
		for i := range a {
			ratios = append(ratios, b[i]/a[i])
		}
		low, median, high := interval(ratios)
		t.Logf("%-12s %.3f (95 %%: %.3f to %.3f)", name, median, low, high)
		if judged && bound > 0 && (median > 1.05*bound || low > bound) {
			t.Errorf("%s: %.3f (%.3f to %.3f), wanted %.2f", name, median, low, high, bound)
		}
	}
	for k, a := range arms {
		_, median, _ := interval(slices.Clone(costs[k]))
		t.Logf("%d: %.0f ns a frame", a.size, median)
	}
	name := func(a, b *arm) string { return strconv.Itoa(b.size) + "/" + strconv.Itoa(a.size) }
	hold("A/A", 0, costs[0], again)
	for k := 1; k < len(arms); k++ {
		hold(name(arms[0], arms[k]), mostGrowth, costs[0], costs[k])
	}
	for k := 2; k < len(arms); k++ {
		hold(name(arms[k-1], arms[k]), mostStep, costs[k-1], costs[k])
	}
}
