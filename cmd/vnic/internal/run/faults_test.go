package run

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"vnic.dev/vnic/guest-images/transfer"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/wire"
)

// All that a link can do to what passes it, at once, and its carrier goes while a transfer is under way, and NICs lose
// interrupts, are late, and take no buffers: the stream is right, and each fault has been seen. The transfer is slower
// than the script, as links have rates, and lasts until the NIC takes buffers again.
func TestFaultsLeaveTheStreamRight(t *testing.T) {
	const guest = `
    memory: 256M,
    sockets: [{name: s0}],
    switches: [{name: sw0, below: s0}],
    nics: [{name: nic0, below: sw0, model: %s, rate: 80Mbit}],
    gpus: [{name: gpu0, below: sw0, memory: 96M}]`
	const more = `
links:
  - &bad {of: a.nic0, loss: 0.3%, gemodel: 0.05%/30%, drop: [0, 10, 11, 200], reorder: 0.5%, duplicate: 0.5%,
     corrupt: 0.3%, delay: 1ms, jitter: 500us}
  - {<<: *bad, of: b.nic0}
script:
  - {at: 300ms, set: link a.nic0 state=down}
  - {at: 500ms, set: link a.nic0 state=up}
  - {at: 600ms, set: link b.nic0 loss=1%}
  - {at: 50ms, set: nic b.nic0 interrupt=lost}
  - {at: 100ms, set: nic a.nic0 interrupt=lost completions=5ms}
  - {at: 700ms, set: nic b.nic0 exhaust=2s}
`
	for _, c := range []struct{ name, model string }{{"inproc", NICVirtio}, {NICVirtio, NICVirtio}, {NICGVE, NICGVE}} {
		t.Run(c.name, func(t *testing.T) {
			if c.name != "inproc" && testing.Short() {
				t.Skip("boots QEMU")
			}
			testkit.LeavesNothing(t)
			o := Defaults()
			o.InProc, o.Modes, o.Size, o.StallSecs, o.Seed = c.name == "inproc", []string{transfer.Devmem}, 8<<20, 120, 7
			machine := fmt.Sprintf(guest, c.model)
			if c.model == NICVirtio {
				machine = strings.Replace(machine, "96M", "128M", 1)
			}
			o.load(t, file(t, machine, more), 1)
			var mu sync.Mutex
			var notes []string
			o.Note = func(format string, args ...any) {
				mu.Lock()
				defer mu.Unlock()
				notes = append(notes, fmt.Sprintf(format, args...))
			}
			var nics []*nic.Port
			var links []*wire.Link
			o.railHook = func(r *rails) {
				for _, p := range r.lab.Ports() {
					nics, links = append(nics, p.NIC()), append(links, p.NIC().Link())
				}
			}
			testkit.OK(t, o.Check())
			rep := testkit.Must(Do(t.Context(), o))(t)
			validReport(t, rep)
			if r := &rep.Rails[0]; !r.SHA256Match || r.TX.Host+r.RX.Host != 0 || r.RetransmittedBytes == 0 {
				t.Errorf("%+v", r)
			}
			if n := links[0].Counters(); n.Drops[wire.DropLinkLoss] < 4 || n.Duplicated == 0 || n.Held == 0 ||
				n.Corrupted+links[1].Counters().Corrupted == 0 {
				t.Errorf("%+v", n)
			}
			a, b := nics[0].Faults(), nics[1].Faults()
			if a.LostInterrupts != 1 || b.LostInterrupts != 1 || a.LateCompletions == 0 || b.LateCompletions != 0 ||
				a.Refused != 0 { // whether b refuses any is whether a sends any meanwhile
				t.Errorf("%+v; %+v", a, b)
			}
			for _, want := range []string{"at 300ms: link a.nic0 state=down", "at 500ms: link a.nic0 state=up",
				"at 600ms: link b.nic0 loss=1%", "at 50ms: nic b.nic0 interrupt=lost",
				"at 100ms: nic a.nic0 interrupt=lost completions=5ms", "at 700ms: nic b.nic0 exhaust=2s"} {
				if !slices.Contains(notes, want) {
					t.Errorf("not told: %s", want)
				}
			}
		})
	}
}

// Peer to peer that is refused at a moment, and allowed again: payload goes through host memory meanwhile, which the
// proof finds, and arrives as it was sent.
func TestP2PIsRefusedWhileItIsUsed(t *testing.T) {
	testkit.LeavesNothing(t)
	o := railsOptions(t, 1, file(t, "sockets: [{name: s0}], switches: [{name: w, below: s0}], "+
		"nics: [{name: nic0, below: w, rate: 80Mbit}], gpus: [{name: gpu0, below: w}]",
		"script: [{at: 0s, set: nic b.nic0 p2p=off}, {at: 200ms, set: nic b.nic0 p2p=on}]"))
	o.Modes, o.Size = []string{transfer.Devmem}, 8<<20
	rep, err := Do(t.Context(), o)
	if r := &rep.Rails[0]; !errors.Is(err, ErrProof) || !r.SHA256Match || r.BouncedBytes == 0 ||
		r.RX.Host != r.BouncedBytes ||
		r.TX.Host != 0 || r.RX.Device == 0 {
		t.Errorf("%v; %+v", err, r)
	}
}

// Segments that are lost by their number are the same part of the stream in each run.
func TestDropsByNumberHitTheSameBytes(t *testing.T) {
	testkit.LeavesNothing(t)
	for range 2 {
		o := railsOptions(t, 1, file(t, "nics: [{name: n}], gpus: [{name: g}]",
			"links: [{of: a.n, drop: [3, 100, 101, 500]}]"))
		o.Modes = []string{transfer.Devmem}
		var link *wire.Link
		o.railHook = func(r *rails) { link = r.lab.Ports()[0].NIC().Link() }
		rep := testkit.Must(Do(t.Context(), o))(t)
		testkit.Equal(t, "segments lost", link.Counters().Drops[wire.DropLinkLoss], 4)
		if r := &rep.Rails[0]; !r.SHA256Match || r.RetransmittedBytes == 0 {
			t.Errorf("%+v", r)
		}
	}
}
