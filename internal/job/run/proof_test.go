package run

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/transfer"
)

// TestProof checks the main claim under QEMU. The guests of each pair are booted once, unless a case fails.
//
// Invariant: vnic run: Payload goes from GPU to GPU and not through host memory, and the negative
// controls fail as they must.
// Invariant: vnic run: A receiver that holds its tokens until the pool is dry goes on when it
// returns them.
func TestProof(t *testing.T) {
	const either = NICVirtio + "," + NICGVE
	size := func(n uint64) func(*Options) { return func(o *Options) { o.Size = n << 20 } }
	audit := func(o *Options) { o.Audit = true }
	ipv6 := func(o *Options) { o.Family = 6 }
	lossy := func(o *Options) { o.Loss, o.Seed = 0.01, 1 }
	devmem := func(o *Options) { o.Modes = o.Modes[:1] }
	hold := func(n uint64) func(*Options) {
		return func(o *Options) { devmem(o); o.HoldTokens = n }
	}
	bounced := func(o *Options) { devmem(o); o.P2P, o.Seed = false, 7 }
	type row struct {
		name, nic string
		options   []func(*Options)
	}
	rows := []row{
		{NICVirtio, NICVirtio, []func(*Options){size(16), audit}},
		{NICVirtio, NICVirtio, []func(*Options){size(8), ipv6}},
		{NICVirtio, NICVirtio, []func(*Options){size(8), lossy}},
		{NICGVE, NICGVE, []func(*Options){size(16), audit}},
		{NICGVE, NICGVE, []func(*Options){size(8), ipv6}},
		{NICGVE, NICGVE, []func(*Options){size(8), lossy}},
		{NICGVE, NICGVE, []func(*Options){size(8), func(o *Options) { o.BindQueues = 2 }}},
		{NICGVE, NICGVE, []func(*Options){size(64), hold(1_000_000)}},
		{NICGVE, NICGVE, []func(*Options){size(64), hold(1)}},
	}
	for _, nic := range []string{either, NICGVE + "," + NICVirtio} {
		for _, family := range []int{4, 6} {
			setFamily := func(o *Options) { o.Family = family }
			rows = append(rows, row{either, nic, []func(*Options){size(16), setFamily, audit}},
				row{either, nic, []func(*Options){size(8), setFamily, lossy}})
		}
	}
	// Without peer-to-peer the same bytes arrive, through host memory.
	for _, r := range []row{{name: either, nic: either}, {name: either, nic: NICGVE + "," + NICVirtio},
		{name: NICVirtio, nic: NICVirtio}, {name: NICGVE, nic: NICGVE}} {
		rows = append(rows, row{r.name + noP2P, r.nic, []func(*Options){size(8), bounced}})
	}
	for _, r := range rows {
		o := pairOptions(r.nic, 0)
		for _, change := range r.options {
			change(&o)
		}
		t.Run(flags(&o), func(t *testing.T) {
			rep := booted(t, r.name).run(t, o)
			for _, wrong := range unproved(rep, &o) {
				t.Error(wrong)
			}
			if !o.P2P {
				direct := options(o.Size)
				direct.Modes, direct.Seed = o.Modes, o.Seed
				direct.GPUMemory = o.GPUMemory // the same rounds: the report has a digest of each
				if want := do(t, direct).Runs[0].SHA256; rep.Runs[0].SHA256 != want {
					t.Errorf("digest %s, with P2P %s", rep.Runs[0].SHA256, want)
				}
			}
		})
	}
}

func flags(o *Options) string {
	s := fmt.Sprintf("--nic %s --size %dM --family %d", o.NIC, o.Size>>20, o.Family)
	if len(o.Modes) == 1 {
		s += " --mode " + o.Modes[0]
	}
	for _, f := range []struct {
		given bool
		flag  string
	}{
		{o.Audit, "--audit"},
		{o.Loss > 0, fmt.Sprintf("--loss %g%%", 100*o.Loss)},
		{o.BindQueues > 1, fmt.Sprintf("--bind-queues %d", o.BindQueues)},
		{o.HoldTokens > 0, fmt.Sprintf("--hold-tokens %d", o.HoldTokens)},
		{!o.P2P, "--p2p off"},
	} {
		if f.given {
			s += " " + f.flag
		}
	}
	return s
}

// again bounds the bytes that in-process guests send again without loss: a guest that gets no processor for a while may
// lack pages, or its timer may fire.
const again = 64 << 10

// unproved lists the conditions of a proof that do not hold: the report's own, and further ones of the options.
func unproved(rep *Report, o *Options) (wrong []string) {
	check := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	if err := rep.check(o, nil, nil); err != nil {
		wrong = append(wrong, err.Error())
	}
	guest := map[bool]string{true: "inproc", false: "qemu"}[o.InProc]
	check(rep.NIC == o.NIC && rep.Family == o.Family && rep.BindQueues == o.BindQueues && rep.Guest == guest,
		"the report is of another run: %+v", rep)
	check(slices.EqualFunc(rep.Runs, o.Modes, func(r Run, mode string) bool { return r.Mode == mode }),
		"not the modes %v: %+v", o.Modes, rep.Runs)
	for i := range rep.Runs {
		r := &rep.Runs[i]
		all := func(n uint64) bool { return n == r.Bytes+r.RetransmittedBytes } // n is the payload with retransmissions
		if o.Lossy() || o.HoldTokens > 1 {
			all = func(n uint64) bool { return n >= r.Bytes }
		} else if o.InProc {
			check(r.DroppedPackets == 0 && r.RetransmittedBytes <= again,
				"mode %s: %d bytes sent again, %d packets dropped", r.Mode, r.RetransmittedBytes, r.DroppedPackets)
		}
		check(r.Mode != transfer.Devmem || !o.P2P || all(r.TX.Device) && all(r.RX.Device),
			"mode devmem: more than the payload: sent %+v, received %+v, of %d", r.TX, r.RX, r.Bytes)
		if o.Loss > 0 {
			check(r.RetransmittedBytes > 0 && r.DroppedPackets > 0,
				"mode %s: %d bytes sent again, %d packets dropped: was the link good?",
				r.Mode, r.RetransmittedBytes, r.DroppedPackets)
		}
		check(!o.Audit || r.Audit != nil, "no audit")
		if r.Mode == transfer.Devmem && o.HoldTokens > 0 {
			wrong = append(wrong, wronglyHeld(r, o)...)
		}
	}
	return wrong
}

// wronglyHeld describes what is wrong with a run in which the receiver held tokens. If HoldTokens is more than 1, the
// pool must have run dry, so that packets were dropped and the transfer stalled; a single token must cause neither.
func wronglyHeld(r *Run, o *Options) (wrong []string) {
	x, err := planned(o)
	if err != nil || r.Hold == nil {
		return append(wrong, fmt.Sprintf("nothing of what was held: %v", err))
	}
	p := x.streams[0].plan
	switch most := p.pool / page * 4 / 7; {
	case o.HoldTokens > 1 && (r.Hold.Stalls < 1 || r.Hold.Tokens < most || r.DroppedPackets == 0):
		wrong = append(wrong, fmt.Sprintf("held %+v of a pool of %d pages, %d packets dropped", *r.Hold,
			p.pool/page, r.DroppedPackets))
	case o.HoldTokens == 1 && (r.Hold.Stalls != 0 || r.DroppedPackets != 0):
		wrong = append(wrong, fmt.Sprintf("%d stalls, %d packets dropped", r.Hold.Stalls, r.DroppedPackets))
	}
	return wrong
}

// In each case the report does not prove what its options demand, and unproved finds that.
func TestProofSeesWhatIsWrong(t *testing.T) {
	plain := func() (*Report, Options) {
		rep, o := sample(), pairOptions(NICVirtio, sample().Runs[0].Bytes)
		o.Audit = true
		rep.Runs[1].RetransmittedBytes, rep.Runs[1].DroppedPackets = 0, 0
		return rep, o
	}
	if rep, o := plain(); len(unproved(rep, &o)) != 0 {
		t.Fatal(unproved(rep, &o))
	}
	for name, change := range map[string]func(*Report, *Options){
		"another NIC":    func(_ *Report, o *Options) { o.NIC = NICGVE },
		"another family": func(rep *Report, _ *Options) { rep.Family = 6 },
		"other queues":   func(_ *Report, o *Options) { o.BindQueues = 2 },
		"no QEMU":        func(rep *Report, _ *Options) { rep.Guest = "inproc" },
		"a mode less":    func(rep *Report, _ *Options) { rep.Runs = rep.Runs[:1] },
		"sent again":     func(rep *Report, _ *Options) { rep.Runs[0].TX.Device++ },
		"P2P was off":    func(_ *Report, o *Options) { o.P2P = false },
		"not bounced": func(rep *Report, o *Options) {
			o.P2P, rep.Runs[0].TX, rep.Runs[0].RX = false, rep.Runs[1].TX, rep.Runs[1].RX
		},
		"no loss":       func(_ *Report, o *Options) { o.Loss = 0.01 },
		"no audit":      func(rep *Report, _ *Options) { rep.Runs[0].Audit = nil },
		"held, no drop": func(_ *Report, o *Options) { o.HoldTokens = 1_000_000 },
		"held no pages": func(rep *Report, o *Options) {
			o.HoldTokens, rep.Runs[0].DroppedPackets, rep.Runs[0].Hold.Tokens = 1_000_000, 1, 100
		},
		"stalled all the same": func(_ *Report, o *Options) { o.HoldTokens = 1 },
		"nothing held":         func(rep *Report, o *Options) { o.HoldTokens, rep.Runs[0].Hold = 1, nil },
	} {
		rep, o := plain()
		change(rep, &o)
		if len(unproved(rep, &o)) == 0 {
			t.Errorf("%s: passes for a proof", name)
		}
	}
	if rep, o := plain(); strings.Join(unproved(rep, &o), "") != "" {
		t.Error("a case has changed the sample")
	}
}
