package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/transfer"
	"vnic.dev/vnic/splitter"
)

// railsOptions returns options of a run in this process over so many rails of this lab file; "": without one.
func railsOptions(t *testing.T, rails int, file string) Options {
	o := Defaults()
	o.InProc, o.Size, o.Rails, o.Seed, o.GPUMemory = true, 1<<20, rails, 7, 64<<20
	if file != "" {
		o.load(t, file, rails)
	}
	testkit.OK(t, o.Check())
	return o
}

func (o *Options) load(t *testing.T, file string, rails int) {
	l := testkit.Must(labfile.Load(file, nil))(t)
	l.Sow(o.Seed)
	o.Take(l, rails)
}

func (r *Rail) where() string {
	group := func(n uint64) string {
		switch {
		case n == 0:
			return "none"
		case n == r.Bytes, n == r.Bytes+r.RetransmittedBytes:
			return "all"
		}
		return fmt.Sprint(n, " of ", r.Bytes)
	}
	return fmt.Sprintf("%s %t device %s/%s host %s/%s", r.Path, r.P2P, group(r.TX.Device), group(r.RX.Device),
		group(r.TX.Host), group(r.RX.Host))
}

// Each direction of each rail has its own payload: in mode devmem none of it is in host memory, in mode copy all.
func TestRailsAreProvedEach(t *testing.T) {
	testkit.LeavesNothing(t)
	for name, rails := range map[string]int{"": 2, "a3-high": 4} {
		o := railsOptions(t, rails, name)
		o.Bidir = true
		rep := testkit.Must(Do(t.Context(), o))(t)
		if len(rep.Rails) != 2*2*rails || len(rep.Runs) != 2 {
			t.Fatalf("%d rails, %d runs", len(rep.Rails), len(rep.Runs))
		}
		digests := make(map[string]bool)
		for i := range rep.Rails {
			r := &rep.Rails[i]
			want := "PIX true device all/all host none/none"
			if r.Mode == "copy" {
				want = "PIX true device none/none host all/all"
			}
			if r.where() != want || !r.SHA256Match || r.RetransmittedBytes > again || digests[r.Mode+r.SHA256] {
				t.Errorf("%s, %s to %s: %s, digest %s, %d sent again", r.Mode, r.From, r.To, r.where(), r.SHA256,
					r.RetransmittedBytes)
			}
			digests[r.Mode+r.SHA256] = true
		}
		for i := range rep.Runs {
			all := uint64(2*rails) * o.Size
			testkit.Equal(t, "bytes", rep.Runs[i].Bytes, all)
			testkit.Equal(t, "dropped", rep.Runs[i].DroppedPackets, 0)
			// In mode devmem the receiver's engine gathers the payload; in mode copy engines move it to the
			// sender's RAM and from the receiver's.
			testkit.Equal(t, "by copy engines", rep.Runs[i].CopyEngineBytes, uint64(i+1)*all)
		}
		var b strings.Builder
		testkit.OK(t, rep.Table(&b))
		if strings.Count(b.String(), "match") < 4*rails || strings.Contains(b.String(), "MISMATCH") {
			t.Error(b.String())
		}
		if f := rep.Fairness("devmem"); f <= 0 || f > 1.0001 {
			t.Errorf("fairness %g", f)
		}
		validReport(t, rep)
	}
}

func file(t *testing.T, guest, more string) string {
	name := filepath.Join(t.TempDir(), "lab.yaml")
	testkit.OK(t, os.WriteFile(name, []byte("guests: {a: &a {"+guest+"}, b: *a}\n"+more), 0o644))
	return name
}

// The number of queue pairs is the lab file's, up to our driver's maximum; one at least must stay unbound.
func TestRailsOfManyQueues(t *testing.T) {
	testkit.LeavesNothing(t)
	o := railsOptions(t, 1, file(t, "nics: [{name: n, queues: 5}], gpus: [{name: g}]", ""))
	o.BindQueues = 3
	testkit.OK(t, o.Check())
	testkit.Equal(t, "rails", len(testkit.Must(Do(t.Context(), o))(t).Rails), 2)
	o.BindQueues = 5
	testkit.ErrorSays(t, o.Check(), "--bind-queues 5: guests use 5 pairs of queues of NIC a.n")

	o = railsOptions(t, 1, file(t, "nics: [{name: n, queues: 12}], gpus: [{name: g}]", "")) // our driver uses 8 of them
	o.Modes, o.BindQueues = []string{"devmem"}, 7
	testkit.OK(t, testkit.Err(Do(t.Context(), o)))
	o.BindQueues = 8
	testkit.ErrorSays(t, o.Check(), "--bind-queues 8: guests use 8 pairs of queues of NIC a.n")
}

// A link that loses affects only its own rail.
func TestRailsThatLose(t *testing.T) {
	testkit.Slow(t)
	testkit.LeavesNothing(t)
	o := railsOptions(t, 2, file(t, "nics: [{name: n}, {name: m}], gpus: [{name: g}, {name: h}]",
		"links: [{of: a.m, loss: 2%}]"))
	o.Modes, o.Size = []string{"devmem"}, 4<<20
	rep := testkit.Must(Do(t.Context(), o))(t)
	if rep.Loss != 0.02 || rep.Rails[0].DroppedPackets != 0 || rep.Rails[0].RetransmittedBytes > again ||
		rep.Rails[1].DroppedPackets == 0 || rep.Rails[1].RetransmittedBytes == 0 || !rep.Rails[1].SHA256Match {
		t.Errorf("%+v", rep)
	}
}

// An interruption ends all transfers.
func TestRailsAreInterrupted(t *testing.T) {
	testkit.Slow(t)
	testkit.LeavesNothing(t)
	o := railsOptions(t, 4, "a3-high")
	o.Bidir, o.Size = true, 1<<40
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	o.Progress = func(_ string, done, _ uint64) {
		if done > 1<<20 {
			cancel(stop)
		}
	}
	testkit.ErrorIs(t, testkit.Err(Do(ctx, o)), stop)
}

// crossed is a guest each of whose NICs uses the GPU below the other NIC's switch.
const crossed = `
    sockets: [{name: s0, p2p: same-bridge}],
    switches: [{name: sw0, below: s0}, {name: sw1, below: s0}],
    nics: [{name: nic0, below: sw0, gpus: [gpu1]}, {name: nic1, below: sw1, gpus: [gpu0]}],
    gpus: [{name: gpu0, below: sw0, memory: 64M}, {name: gpu1, below: sw1, memory: 64M}]`

// In mode devmem, if the tree does not let a NIC reach its GPU peer to peer, or P2P is off, the payload is bounced.
func TestRailsGoByTheirPaths(t *testing.T) {
	testkit.LeavesNothing(t)
	oneOff := file(t, `
    sockets: [{name: s0, p2p: none}],
    switches: [{name: sw0, below: s0}, {name: sw1, below: s0}],
    nics: [{name: nic0, below: sw0}, {name: nic1, below: sw1}],
    gpus: [{name: gpu0, below: sw0, memory: 64M}, {name: gpu1, below: sw1, memory: 64M, acs-redirect: true}]`, "")
	const direct, bounced = "device all/all host none/none", "device none/none host all/all"
	for _, c := range []struct {
		file  string
		rails int
		off   bool
		want  []string
	}{
		{"flat", 2, false, []string{"PHB false " + bounced, "PHB false " + bounced, "PHB false " + bounced,
			"PHB false " + bounced}},
		{"acs", 1, false, []string{"PIX true " + direct, "PIX false " + bounced}}, // on the way back gpu1's port redirects
		{oneOff, 2, false, []string{"PIX true " + direct, "PIX true " + direct, "PIX false " + bounced,
			"PIX false " + bounced}},
		{file(t, crossed, ""), 2, false, []string{"PHB true " + direct, "PHB true " + direct, "PHB true " + direct,
			"PHB true " + direct}},
		{"pair", 1, true, []string{"PIX false " + bounced, "PIX false " + bounced}},
		{"", 1, true, []string{"PIX false " + bounced, "PIX false " + bounced}},
	} {
		o := railsOptions(t, c.rails, c.file)
		o.Bidir, o.Modes, o.P2P = true, []string{"devmem"}, !c.off
		rep, err := Do(t.Context(), o)
		if err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		for i := range rep.Rails {
			testkit.Equal(t, c.file+": "+rep.Rails[i].From, rep.Rails[i].where(), c.want[i])
		}
	}
}

func TestRailsHaveTheFilesAddresses(t *testing.T) {
	testkit.LeavesNothing(t)
	text := "guests: {a: {nics: [{name: n, ipv4: 192.0.2.1/30, ipv6: fd00::1/64}], gpus: [{name: g}]}, " +
		"b: {nics: [{name: n, ipv4: 192.0.2.2/30, ipv6: fd00::9/64}], gpus: [{name: g}]}}"
	name := filepath.Join(t.TempDir(), "lab.yaml")
	testkit.OK(t, os.WriteFile(name, []byte(text), 0o644))
	for family, want := range map[int]string{4: "192.0.2.1 192.0.2.2", 6: "fd00::1 fd00::9"} {
		o := railsOptions(t, 1, name)
		o.Family = family
		seen := make(map[string]bool)
		_, frames := capturedRun(t, o, 0)
		for i := range frames {
			if f := &frames[i]; f.Class == splitter.TCP {
				for _, a := range [][16]byte{f.Flow.Src, f.Flow.Dst} {
					addr := netip.AddrFrom4([4]byte(a[:4]))
					if f.IPv6 {
						addr = netip.AddrFrom16(a)
					}
					seen[addr.String()] = true
				}
			}
		}
		testkit.Equal(t, "addresses", strings.Join(slices.Sorted(maps.Keys(seen)), " "), want)
	}
}

// QEMU guests transfer over two rails at the same time, in both directions and in several rounds. The second
// rail's GPUs are behind ports that redirect.
func TestRailsOfMachines(t *testing.T) {
	testkit.Boots(t)
	const guest = `
    memory: 256M, cpus: 2,
    sockets: [{name: s0, p2p: none}],
    switches: [{name: sw0, below: s0}, {name: sw1, below: s0}],
    nics: [{name: nic0, below: sw0, model: %[1]s, gpus: [gpu0]},
      {name: nic1, below: sw1, model: %[2]s, mtu: 4000, gpus: [gpu1]}],
    gpus: [{name: gpu1, below: sw1, memory: %[4]s, acs-redirect: true}, {name: gpu0, below: sw0, memory: %[3]s}]`
	memory := map[string]string{NICVirtio: "64M", NICGVE: "96M"} // for 28 or 31.5 MiB in a round
	for _, c := range []struct{ name, first, second string }{{NICVirtio, NICVirtio, NICVirtio}, {NICGVE, NICGVE, NICGVE},
		{NICGVE + "+" + NICVirtio, NICGVE, NICVirtio}} {
		t.Run(c.name, func(t *testing.T) {
			testkit.LeavesNothing(t)
			o := Defaults()
			o.load(t, file(t, fmt.Sprintf(guest, c.first, c.second, memory[c.first], memory[c.second]), ""), 0)
			o.Bidir, o.Size, o.StallSecs = true, 36<<20, 120
			testkit.OK(t, o.Check())
			rep := testkit.Must(Do(t.Context(), o))(t)
			validReport(t, rep)
			if len(rep.Rails) != 8 || rep.Guest != "qemu" || rep.NIC != c.name {
				t.Fatalf("%+v", rep)
			}
			digests := make(map[string]bool)
			for i := range rep.Rails {
				r := &rep.Rails[i]
				want := map[int]string{0: "PIX true", 1: "PIX false"}[r.Rail] + " device none/none host all/all"
				if r.Mode == transfer.Devmem && r.Rail == 0 {
					want = "PIX true device all/all host none/none"
				}
				if r.where() != want || !r.SHA256Match || r.Rounds < 2 || digests[r.Mode+r.SHA256] || r.GuestCPU != nil {
					t.Errorf("%s, %s to %s: %s in %d rounds, digest %s %t", r.Mode, r.From, r.To, r.where(), r.Rounds, r.SHA256,
						r.SHA256Match)
				}
				digests[r.Mode+r.SHA256] = true
			}
		})
	}
}

// stepper fails the test if a guest prepares or finishes one direction of a rail while the sender of the other connects
// or sends.
type stepper struct {
	transfer.Guest
	t              *testing.T
	moves, changes *atomic.Int32
}

func (s *stepper) during(running, excluded *atomic.Int32, f func() error) error {
	running.Add(1)
	defer running.Add(-1)
	if excluded.Load() != 0 {
		s.t.Error("one direction binds or unbinds queues while the other transfers")
	}
	return f()
}

func (s *stepper) Do(ctx context.Context, c transfer.Call) error {
	do := func() error { return s.Guest.Do(ctx, c) }
	switch c.Name {
	case "transfer.prepare", "transfer.finish":
		return s.during(s.changes, s.moves, do)
	case "transfer.connect", "transfer.send":
		return s.during(s.moves, s.changes, do)
	}
	return do()
}

// Neither direction of a rail prepares or finishes while the other connects or sends: gve's driver would hold back its
// packets while a queue is bound (see barrier).
func TestDirectionsAreInStep(t *testing.T) {
	testkit.Slow(t)
	testkit.LeavesNothing(t)
	o := railsOptions(t, 2, "")
	o.Bidir, o.Size, o.Modes = true, 100<<20, []string{"devmem"}
	o.opened = func(r *runner) {
		moves, changes := [2]atomic.Int32{}, [2]atomic.Int32{}
		for _, s := range r.streams {
			for _, e := range s.ends {
				e.Ops = &stepper{e.Ops, t, &moves[s.rail.Rail], &changes[s.rail.Rail]}
			}
		}
	}
	rep := testkit.Must(Do(t.Context(), o))(t)
	if rep.Rails[0].Rounds < 3 || !rep.Runs[0].SHA256Match {
		t.Errorf("%+v", rep)
	}
}

// spoiler calls spoil when its guest has received the data.
type spoiler struct {
	transfer.Guest
	spoil func() error
}

func (s *spoiler) Do(ctx context.Context, c transfer.Call) error {
	err := s.Guest.Do(ctx, c)
	if c.Name == "transfer.receive" {
		err = errors.Join(err, s.spoil())
	}
	return err
}

func TestWrongByteOfARailIsFound(t *testing.T) {
	testkit.LeavesNothing(t)
	o := railsOptions(t, 2, "")
	o.Modes = []string{"devmem"}
	o.opened = func(r *runner) {
		s := r.streams[1]
		e := s.ends[1]
		e.Ops = &spoiler{e.Ops, func() error {
			b, pos := []byte{0}, int64(e.base+s.plan.pool+12345)
			file := e.HW.GPUs[s.places[1].gpu].File
			_, err := file.ReadAt(b, pos)
			b[0] ^= 1
			_, werr := file.WriteAt(b, pos)
			return errors.Join(err, werr)
		}}
	}
	_, err := Do(t.Context(), o)
	if !errors.Is(err, ErrProof) {
		t.Fatal(err)
	}
	testkit.ErrorSays(t, err, "a.nic1 to b.nic1", "byte 12345 of the destination")
	if strings.Contains(err.Error(), "a.nic0") {
		t.Error(err)
	}
}

func TestRailsThatCannotBe(t *testing.T) {
	parse := func(file string) *labfile.Lab { return testkit.Must(labfile.Parse("f", []byte(file)))(t) }
	const gve = "guests: {a: &a {nics: [{name: n, model: gve}], gpus: [{name: g, memory: "
	for want, change := range map[string]func(o *Options){
		"--rails 33: 1 to 32":       func(o *Options) { o.Rails = 33 },
		"--rails -1":                func(o *Options) { o.Rails = -1 },
		"--bidir is of rails":       func(o *Options) { o.Bidir, o.Rails = true, 0 },
		"--size 0":                  func(o *Options) { o.Size = 0 },
		"--rails 13: QEMU has room": func(o *Options) { o.InProc, o.Rails = false, 13 },
		"guest a has 192M of RAM for 2 NICs: 240M at least": func(o *Options) {
			o.InProc, o.Rails, o.Memory = false, 2, 192<<20
		},
		"rail 0: a.g has 54M of memory, too small for a transfer at a NIC of model gve: 56M": func(o *Options) {
			o.InProc, o.Lab = false, parse(gve+"54M}]}, b: *a}")
		},
		"rail 0: a.g has 64M of memory, too small for 2 transfers at a NIC of model gve: 88M": func(o *Options) {
			o.InProc, o.Bidir, o.Lab = false, true, parse(gve+"64M}]}, b: *a}")
		},
		"a has 256M of RAM for 1 NICs, and uses that of the first of 2 sockets: 384M": func(o *Options) {
			o.InProc, o.Lab = false, parse("guests: {a: &a {memory: 256M, sockets: [{name: s}, {name: t}], "+
				"nics: [{name: n, model: gve, below: s}], gpus: [{name: g, memory: 128M, below: s}]}, b: *a}")
		},
		"rail 0: a.g has 64M of memory, too small for 2 transfers at a NIC of model gve: ": func(o *Options) {
			o.InProc, o.Bidir, o.Rails, o.Lab = false, true, 2, parse("guests: {a: &a {nics: [{name: n, model: gve, "+
				"gpus: [g]}, {name: m, gpus: [h]}], gpus: [{name: g}, {name: h}]}, b: *a}")
		},
		"b has 192M of RAM for 3 NICs: 256M at least": func(o *Options) {
			o.InProc, o.Rails, o.Lab = false, 1, parse("guests: {a: {nics: [{name: n, model: gve}], gpus: [{name: g, "+
				"memory: 128M}]}, b: {memory: 192M, nics: [{name: n, gpus: [g]}, {name: m, model: gve, gpus: []}, "+
				"{name: l, gpus: []}], gpus: [{name: g, memory: 128M}]}}")
		},
		"a.n has 192.0.2.1/24, and b.n 10.118.110.2/24: the ends of a rail are in one subnet": func(o *Options) {
			o.Lab = parse("guests: {a: {nics: [{name: n, ipv4: 192.0.2.1/24}], gpus: [{name: g}]}, b: {nics: [{name: n}], " +
				"gpus: [{name: g}]}}")
		},
		"a.n has fd76:6e69::1/64, and b.n fd00::1/64": func(o *Options) {
			o.Family, o.Lab = 6, parse("guests: {a: {nics: [{name: n}], gpus: [{name: g}]}, b: {nics: [{name: n, "+
				"ipv6: fd00::1/64}], gpus: [{name: g}]}}")
		},
		"of the lab file has 4 NIC": func(o *Options) { o.Rails, o.Lab = 5, testkit.Must(labfile.Load("a3-high", nil))(t) },
		"1 guests: vnic run has two": func(o *Options) {
			o.Lab = parse("guests: {a: {nics: [{name: n}]}}")
		},
		"a.n reaches no GPU": func(o *Options) {
			o.Lab = parse("guests: {a: &a {nics: [{name: n}]}, b: *a}")
		},
		"a.n is of model gve": func(o *Options) {
			o.Lab = parse(gve + "128M}]}, b: *a}")
		},
	} {
		o := Defaults()
		o.InProc, o.Rails = true, 1
		change(&o)
		testkit.ErrorSays(t, o.Check(), want)
	}
	o := railsOptions(t, 1, "pair")
	o.Lab.Guests[0].GPUs[0].Memory = 16 << 20
	for _, err := range []error{o.Check(), testkit.Err(Do(t.Context(), o))} {
		testkit.ErrorSays(t, err, "rail 0: a.gpu0 has 16M", "too small", "32M at least")
	}
}

// Remodel gives a file's NICs another model; GPUs that become NUMA nodes get nodeMemory at least, and NICs and GPUs
// have Hotplug afterwards only where the model supports it.
func TestLabOfAnotherModel(t *testing.T) {
	for nic, want := range map[string]string{
		"gve": "gve 128M false false gve 128M false false", "virtio": "virtio 64M true true virtio 64M true true",
		"gve,virtio": "gve 128M false false virtio 64M true true",
	} {
		o, got := Defaults(), []string{}
		o.NIC = nic
		l := testkit.Must(labfile.Load("a3-high", nil))(t)
		for i := range l.Guests {
			l.Guests[i].NICs[3].Hotplug = true
			remove := testkit.Must(lab.ParseChange("gpu " + l.Guests[i].GPUs[7].Name + " remove"))(t)
			l.Script = append(l.Script, lab.Event{Change: remove})
		}
		testkit.OK(t, o.Remodel(l))
		o.Take(l, 0)
		testkit.OK(t, o.Check())
		for _, g := range l.Guests {
			got = append(got, g.NICs[3].Model, lab.FormatBytes(g.GPUs[7].Memory),
				fmt.Sprint(g.NICs[3].Hotplug, " ", g.GPUs[7].Hotplug))
		}
		testkit.Equal(t, "models and memory", strings.Join(got, " "), want)
	}
	o := Defaults()
	o.NIC, o.InProc = "gve", true
	testkit.ErrorSays(t, o.Remodel(testkit.Must(labfile.Load("pair", nil))(t)), "none with --guest inproc")
}
