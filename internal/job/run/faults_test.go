package run

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/transfer"
	"vnic.dev/vnic/internal/wire"
)

// faultRow is a fault: settings of both guests' links, lines of a script, or both. With a model in ends the fault ends
// the stream, with such an error; else the stream arrives unchanged. A model in refused refuses the fault, in a note
// with this text.
type faultRow struct {
	fault   string
	link    string              // settings in a lab file
	set     []string            // lines of a script, each with its time
	ends    map[string][]string // by model: parts of possible errors
	refused map[string]string
	seen    func(a, b *nic.Port) bool // reports whether the NICs' counters show the fault; nil: they need not
}

// everyFault has a row for each of lab.Faults; exampleRows adds the impairments without one.
var everyFault = exampleRows([]faultRow{
	{fault: "link loss", link: "loss: 0.3%", set: []string{"600ms link b.nic0 loss=1%"},
		seen: func(a, _ *nic.Port) bool { return a.Link().Counters().Drops[wire.DropLinkLoss] > 0 }},
	{fault: "link gemodel", link: "gemodel: 0.05%/30%"},
	{fault: "link drop", link: "drop: [0, 10, 11, 200]",
		seen: func(a, _ *nic.Port) bool { return a.Link().Counters().Drops[wire.DropLinkLoss] >= 4 }},
	{fault: "link reorder", link: "reorder: 0.5%",
		seen: func(a, _ *nic.Port) bool { return a.Link().Counters().Held > 0 }},
	{fault: "link duplicate", link: "duplicate: 0.5%",
		seen: func(a, _ *nic.Port) bool { return a.Link().Counters().Duplicated > 0 }},
	{fault: "link corrupt", link: "corrupt: 0.3%",
		seen: func(a, b *nic.Port) bool { return a.Link().Counters().Corrupted+b.Link().Counters().Corrupted > 0 }},
	{fault: "link ecn", link: "ecn: true"}, // frames of senders without ECN are still lost
	{fault: "link delay", link: "delay: 1ms"},
	{fault: "link jitter", link: "jitter: 500us"},
	{fault: "link rate", link: "rate: 75Mbit"},
	{fault: "link limit", link: "rate: 75Mbit, limit: 512K"},
	{fault: "link state", set: []string{"300ms link a.nic0 state=down", "500ms link a.nic0 state=up"}},
	{fault: "nic p2p", set: []string{"20ms nic a.nic0 p2p=off"}},
	{fault: "nic interrupt", set: []string{"50ms nic b.nic0 interrupt=lost", "100ms nic a.nic0 interrupt=lost"},
		seen: func(a, b *nic.Port) bool { return a.Faults().LostInterrupts == 1 && b.Faults().LostInterrupts == 1 }},
	{fault: "nic completions", set: []string{"100ms nic a.nic0 completions=5ms"},
		seen: func(a, b *nic.Port) bool { return a.Faults().LateCompletions > 0 && b.Faults().LateCompletions == 0 }},
	{fault: "nic exhaust", set: []string{"700ms nic b.nic0 exhaust=2s"}},
	{fault: "nic tokens", set: []string{"20ms nic b.nic0 tokens=30ms"}},
	{fault: "nic reset", set: []string{"300ms nic b.nic0 reset=ask"},
		ends: map[string][]string{NICGVE: {"bad address", "connection reset by peer"}}, refused: map[string]string{NICVirtio: "the device status is QEMU's"}},
	{fault: "nic remove", set: []string{"200ms nic a.nic0 remove"},
		ends: map[string][]string{NICVirtio: {"no such device"}}, refused: map[string]string{NICGVE: "QEMU aborts"}},
	{fault: "gpu remove", set: []string{"200ms gpu b.gpu0 remove"},
		ends: map[string][]string{NICVirtio: {"no such device"}}, refused: map[string]string{NICGVE: "NUMA node's"}},
})

func exampleRows(rows []faultRow) []faultRow {
	for _, f := range lab.Impairments() {
		name := f.Kind + " " + f.Key
		if !slices.ContainsFunc(rows, func(r faultRow) bool { return r.fault == name }) {
			rows = append(rows, faultRow{fault: name, set: []string{"20ms link a.nic0 " + f.Words()}})
		}
	}
	return rows
}

func TestEveryFaultHasARow(t *testing.T) {
	var rows, faults []string
	for _, f := range everyFault {
		rows = append(rows, f.fault)
	}
	for _, f := range lab.Faults() {
		faults = append(faults, f.Kind+" "+f.Key)
	}
	slices.Sort(rows)
	slices.Sort(faults)
	testkit.Equal(t, "rows", strings.Join(rows, ", "), strings.Join(faults, ", "))
}

// faultyLab writes a lab file of two equal guests. links are settings of both NICs' links; an entry of script
// is a time and a change.
func faultyLab(t *testing.T, model string, links, script []string) string {
	machine := `
    memory: 256M,
    sockets: [{name: s0}],
    switches: [{name: sw0, below: s0}],
    nics: [{name: nic0, below: sw0, model: ` + model + `, rate: 80Mbit}],
    gpus: [{name: gpu0, below: sw0, memory: 128M}]`
	if model == NICGVE {
		machine = strings.Replace(machine, "128M", "96M", 1)
	}
	var more strings.Builder
	if len(links) > 0 {
		fmt.Fprintf(&more, "links:\n  - &bad {of: a.nic0, %s}\n  - {<<: *bad, of: b.nic0}\n",
			strings.Join(links, ", "))
	}
	if len(script) > 0 {
		more.WriteString("script:\n")
	}
	for _, s := range script {
		where, set, _ := strings.Cut(s, " ")
		fmt.Fprintf(&more, "  - {at: %s, set: %s}\n", where, set)
	}
	return file(t, machine, more.String())
}

func faulty(t *testing.T, inProc bool, lab string, n int, size uint64) (rep *Report, nics []*nic.Port, notes []string,
	err error) {
	o := Defaults()
	o.InProc, o.Modes, o.Size, o.StallSecs, o.Seed = inProc, []string{transfer.Devmem}, size, 120, 7
	o.load(t, lab, n)
	var mu sync.Mutex
	o.Note = func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		notes = append(notes, fmt.Sprintf(format, args...))
	}
	o.opened = func(r *runner) { nics = r.ports() }
	testkit.OK(t, o.Check())
	rep, err = Do(t.Context(), o)
	if rep != nil {
		validReport(t, rep)
	}
	return rep, nics, notes, err
}

// whole returns an error unless one rail's stream arrived unchanged, and payload was in host memory only where the
// sender's NIC bounced it; an err is permitted only if it is an ErrProof, and payload was bounced.
func whole(rep *Report, err error) error {
	if rep == nil || len(rep.Rails) != 1 {
		return fmt.Errorf("no rail, or several: %w", err)
	}
	r := &rep.Rails[0]
	if bounced := errors.Is(err, ErrProof) && r.BouncedBytes > 0; !r.SHA256Match || err != nil && !bounced ||
		r.RX.Host > 0 || r.TX.Host != r.BouncedBytes {
		return fmt.Errorf("%+v: %w", r, err)
	}
	return nil
}

// With a fault alone, between guests in this process, the stream arrives unchanged or ends with the documented error.
// The small form runs only the faults that end it.
func TestEachFaultInProcess(t *testing.T) {
	for _, f := range everyFault {
		if !testkit.Long() && f.ends[NICVirtio] == nil {
			continue
		}
		t.Run(f.fault, func(t *testing.T) {
			testkit.LeavesNothing(t)
			var links []string
			if f.link != "" {
				links = []string{f.link}
			}
			rep, nics, notes, err := faulty(t, true, faultyLab(t, NICVirtio, links, f.set), 1, 8<<20)
			if want := f.refused[NICVirtio]; want != "" && !strings.Contains(strings.Join(notes, "\n"), want) {
				t.Errorf("no note %q in %q", want, notes)
			}
			if want := f.ends[NICVirtio]; want != nil {
				testkit.ErrorIs(t, err, ErrRemoved)
				testkit.ErrorSays(t, err, want...)
				return
			}
			testkit.OK(t, whole(rep, err))
			if f.seen != nil && !f.seen(nics[0], nics[1]) {
				t.Errorf("not seen: %+v, %+v; %+v, %+v", nics[0].Link().Counters(), nics[0].Faults(),
					nics[1].Link().Counters(), nics[1].Faults())
			}
			if late := rep.Rails[0].LateTokens; (late != nil) != (f.fault == "nic tokens") {
				t.Errorf("late tokens: %+v", late)
			}
		})
	}
}

// With all faults at once that leave the stream unchanged, it arrives unchanged. Rates of the links make the
// transfer take longer than the script.
func TestFaultsLeaveTheStreamRight(t *testing.T) {
	testkit.Slow(t)
	for _, c := range []struct{ name, model string }{{"inproc", NICVirtio}, {NICVirtio, NICVirtio}, {NICGVE, NICGVE}} {
		model, inProc := c.model, c.name == "inproc"
		t.Run(c.name, func(t *testing.T) {
			if !inProc {
				testkit.Boots(t)
			}
			testkit.LeavesNothing(t)
			var links, script []string
			for _, f := range everyFault {
				if f.ends[model] != nil {
					continue
				}
				if f.link != "" && f.fault != "link rate" { // "link limit" sets a rate
					links = append(links, f.link)
				}
				script = append(script, f.set...)
			}
			rep, nics, notes, err := faulty(t, inProc, faultyLab(t, model, links, script), 1, 8<<20)
			testkit.OK(t, whole(rep, err))
			r := &rep.Rails[0]
			if r.RetransmittedBytes == 0 || r.BouncedBytes == 0 || r.LateTokens == nil || r.LateTokens.Tokens == 0 {
				t.Errorf("%+v, late tokens %+v", r, r.LateTokens)
			}
			for _, f := range everyFault {
				if f.ends[model] == nil && f.seen != nil && !f.seen(nics[0], nics[1]) {
					t.Errorf("%s is not seen: %+v, %+v; %+v, %+v", f.fault, nics[0].Link().Counters(), nics[0].Faults(),
						nics[1].Link().Counters(), nics[1].Faults())
				}
				if want := f.refused[model]; want != "" && !strings.Contains(strings.Join(notes, "\n"), want) {
					t.Errorf("no note %q", want)
				}
				for _, set := range f.set {
					where, set, _ := strings.Cut(set, " ")
					if want := fmt.Sprintf("at %s: %s", where, set); f.ends[model] == nil && !slices.ContainsFunc(notes,
						func(s string) bool { return strings.HasPrefix(s, want) }) {
						t.Errorf("no note %q", want)
					}
				}
			}
			if t.Failed() {
				t.Log(strings.Join(notes, "\n"))
			}
		})
	}
}

// While a script forbids the receiver's NIC peer-to-peer, its payload is bounced by host memory, and all arrives
// unchanged.
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

func TestDropsByNumberHitTheSameBytes(t *testing.T) {
	testkit.LeavesNothing(t)
	for range 2 {
		o := railsOptions(t, 1, file(t, "nics: [{name: n}], gpus: [{name: g}]",
			"links: [{of: a.n, drop: [3, 100, 101, 500]}]"))
		o.Modes = []string{transfer.Devmem}
		var link *wire.Link
		o.opened = func(r *runner) { link = r.Lab.Ports()[0].NIC().Link() }
		rep := testkit.Must(Do(t.Context(), o))(t)
		testkit.Equal(t, "segments lost", link.Counters().Drops[wire.DropLinkLoss], 4)
		if r := &rep.Rails[0]; !r.SHA256Match || r.RetransmittedBytes == 0 {
			t.Errorf("%+v", r)
		}
	}
}

// In QEMU, a fault that ends a transfer ends it with one of the errors in the fault's row.
func TestFaultsThatEndTransfers(t *testing.T) {
	for _, model := range []string{NICVirtio, NICGVE} {
		for _, f := range everyFault {
			want := f.ends[model]
			if want == nil {
				continue
			}
			t.Run(model+" "+f.fault, func(t *testing.T) {
				testkit.Boots(t)
				testkit.LeavesNothing(t)
				// The links are slow, because a removal takes more than five seconds, for which Linux waits.
				rep, _, notes, err := faulty(t, false, slow(t, faultyLab(t, model, nil, f.set)), 1, 24<<20)
				if rep != nil || err == nil || !slices.ContainsFunc(want,
					func(w string) bool { return strings.Contains(err.Error(), w) }) {
					t.Errorf("%v, want one of %q; notes: %q", err, want, notes)
				}
			})
		}
	}
}

func slow(t *testing.T, name string) string {
	b := testkit.Must(os.ReadFile(name))(t)
	testkit.OK(t, os.WriteFile(name, []byte(strings.Replace(string(b), "80Mbit", "8Mbit", 1)), 0o644))
	return name
}
