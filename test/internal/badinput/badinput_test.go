package badinput

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type world struct {
	t        *testing.T
	s        *server
	a, b     *guest
	in       *innocents
	attacker *attacker
	control  uint64 // controlFrames before the row
	before   cost   // what the process had used before the row
	port     uint16 // a UDP port of this machine that guests reach
	files    int    // the largest number of open descriptors that try (before the row) and count have found
}

func (w *world) count() { w.files = max(w.files, w.s.cost().files) }

// Each class has a row at each layer, or a reason why not.
func TestTableIsWhole(t *testing.T) {
	have := map[class]map[layer]bool{}
	for _, r := range slices.Concat(table, onFiles) {
		if have[r.class] == nil {
			have[r.class] = map[layer]bool{}
		}
		have[r.class][r.layer] = true
	}
	for _, c := range classes {
		for _, l := range layers {
			if have[c][l] == (noRow[c][l] != "") {
				t.Errorf("%s, %s: a row %v, a reason %q", c, l, have[c][l], noRow[c][l])
			}
		}
	}
}

// Invariant: cmd/vnic: What a frontend or a guest sends costs no more than the table of bad inputs says.
func TestBadInputs(t *testing.T) {
	if testing.Short() {
		t.Skip("runs vnic")
	}
	for _, model := range []string{"virtio", "gve"} {
		t.Run(model, func(t *testing.T) { try(t, model, table) })
	}
}

const tick = 10 * time.Millisecond

// innocent is the processor time that the server is assumed to need for a frame of the innocent guests. If open
// measures more, the rows' limits of processor time rise by the same factor.
const innocent = 50 * time.Microsecond

func try(t *testing.T, model string, rows []row) {
	first := open(t, model)
	for _, r := range rows {
		if r.layer.model() != model {
			continue
		}
		t.Run(string(r.class)+"/"+string(r.layer)+"/"+r.name, func(t *testing.T) {
			v := first
			attempts := attempts
			if r.bound.left > 0 {
				attempts = 1 // after this row the port serves nobody
			}
			var over []string
			for i := range attempts {
				if i > 0 {
					v = open(t, model) // a server logs some lines only once
				}
				w := &world{t: t, s: v.s, a: v.a, b: v.b, in: v.in, attacker: v.s.attacker(t, 2), port: v.port}
				if over = w.try(r, v.usual, v.slowness); len(over) == 0 {
					return
				}
				t.Logf("attempt %d: %s", i+1, strings.Join(over, "; "))
			}
			t.Errorf("in each of %d attempts: at last %s", attempts, strings.Join(over, "; "))
		})
	}
}

type victim struct {
	s    *server
	a, b *guest
	in   *innocents
	port uint16 // a UDP port of this machine that guests reach

	usual    time.Duration // the longest time of an innocent frame while no row runs
	slowness float64       // processor time of an innocent frame, divided by innocent; at least 1
}

func open(t *testing.T, model string) *victim {
	v := &victim{port: freePort(t)}
	v.s = serve(t, 4, "--nic", model, "--host-ports", strconv.Itoa(int(v.port)))
	if model == "gve" {
		v.a, v.b = v.s.gveGuest(0), v.s.gveGuest(1)
	} else {
		v.a, v.b = v.s.attach(0), v.s.attach(1)
	}
	v.in = talk(t, v.a, v.b)
	v.in.move(t, 1000)
	_, _ = v.in.since()
	idle := v.s.cost()
	v.in.move(t, 2000)
	usual, n := v.in.since()
	v.usual = usual
	v.slowness = max(1, float64(v.s.cost().ticks-idle.ticks)*float64(tick)/float64(time.Duration(n)*innocent))
	t.Logf("an innocent frame takes %.1f times as much processor time as it should", v.slowness)
	return v
}

// attempts is how often most rows may run: other work of the machine can only add to their cost.
const attempts = 3

// try runs a row once, and returns the bounds that it exceeds.
func (w *world) try(r row, usual time.Duration, slowness float64) (over []string) {
	w.control = w.controlFrames()
	w.in.move(w.t, 100)
	w.s.forget()
	_, _ = w.in.since()
	before, start := w.s.cost(), time.Now()
	w.before, w.files = before, before.files
	r.input(w)
	w.attacker.hangUp()
	w.in.move(w.t, 100) // the innocent guests still move bytes
	worst, n := w.in.since()
	testkit.Eventually(w.t, "its descriptors are closed", func() bool {
		return w.s.cost().files <= before.files+r.bound.left
	})
	after := w.s.cost()
	spent := time.Duration(after.ticks-before.ticks) * tick
	w.t.Logf("%6.0f ms, %d frames: memory %+d KiB, peak %+d KiB, %v of processor time, %d lines, %d descriptors, "+
		"worst frame %v (usual %v)", float64(time.Since(start).Milliseconds()), n, (after.memory-before.memory)>>10,
		(after.peak-before.peak)>>10, spent, after.lines-before.lines, w.files-before.files, worst, usual)
	exceeds := func(n, most int, what string) {
		if n > most {
			over = append(over, fmt.Sprintf("%d %s, at most %d", n, what, most))
		}
	}
	exceeds(after.memory-before.memory, r.bound.memory, "bytes are left")
	exceeds(after.peak-before.peak, r.bound.peak, "bytes at the peak")
	exceeds(after.lines-before.lines, r.bound.lines, "lines of log")
	exceeds(w.files-before.files, r.bound.files, "descriptors at the peak")
	if most := r.bound.stall + 10*usual; worst > most {
		over = append(over, fmt.Sprintf("%v for an innocent frame, at most %v", worst, most))
	}
	// The cost of the innocent frames does not count.
	if most := time.Duration(slowness * float64(r.bound.cpu+time.Duration(n)*innocent)); spent > most {
		over = append(over, fmt.Sprintf("%v of processor time, at most %v", spent, most))
	}
	return over
}

func freePort(t *testing.T) uint16 {
	t.Helper()
	c := testkit.Must(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	defer func() { testkit.OK(t, c.Close()) }()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}
