package lab

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

func TestLinkSettings(t *testing.T) {
	for _, c := range []struct{ key, value, text string }{
		{"loss", "1%", "1%"}, {"loss", "0.25", "25%"}, {"loss", "0", ""}, {"gemodel", "1%/20%", "1%/20%"},
		{"gemodel", "1%/20%/100%/0", "1%/20%/100%"}, {"gemodel", "0", ""}, {"drop", "7,3,3", "3,7"}, {"drop", "", ""},
		{"reorder", "2%", "2%"}, {"duplicate", "3%", "3%"}, {"corrupt", "4%", "4%"}, {"ecn", "on", "on"}, {"ecn", "off", ""},
		{"delay", "10us", "10µs"}, {"delay", "0", ""}, {"jitter", "2ms", "2ms"}, {"rate", "1Gbit", "1Gbit"},
		{"rate", "1000kbit/s", "1Mbit"}, {"rate", "125MB/s", "1Gbit"}, {"rate", "0", ""},
	} {
		var im wire.Impairment
		f := testkit.Must(lookUp(KindLink, c.key))(t)
		if err := f.Set(&im, c.value); err != nil || f.Text(&im) != c.text {
			t.Errorf("%s=%s: %v, %q, not %q", c.key, c.value, err, f.Text(&im), c.text)
		}
		if c.text != "" {
			testkit.OK(t, f.Set(&im, c.text))
		}
	}
	for _, c := range [][2]string{{"loss", "100%"}, {"loss", "-1%"}, {"gemodel", "1%"}, {"gemodel", "1%/20%/0%"},
		{"gemodel", "1/2/3/4/5"},
		{"drop", "-1"},
		{"ecn", "yes"}, {"delay", "-1s"}, {"delay", "2h"}, {"rate", "0.1kbit"}, {"rate", "fast"},
		{"limit", "0"}, {"limit", "2G"},
		{"speed", "1"}} {
		if _, err := ParseChange("link port0 " + c[0] + "=" + c[1]); err == nil || !strings.Contains(err.Error(), c[0]) {
			t.Errorf("%v: %v", c, err)
		}
	}
}

func TestParseTime(t *testing.T) {
	for s, want := range map[string]time.Duration{"0": 0, "0s": 0, "10us": 10 * time.Microsecond, "1.5s": 1500 * time.Millisecond,
		"2s": 2 * time.Second} {
		if d, err := ParseTime(s, 2*time.Second); err != nil || d != want {
			t.Errorf("%s: %v, %v", s, d, err)
		}
	}
	for _, s := range []string{"", "10", "-1ms", "2001ms", "soon", "300y", "99999999999h"} {
		if d, err := ParseTime(s, 2*time.Second); err == nil || d != 0 || !strings.HasSuffix(err.Error(), ": 2s at most") {
			t.Errorf("%q: %v, %v", s, d, err)
		}
	}
}

var update = flag.Bool("update", false, "write the table of faults in docs/lab-reference.md anew")

// The table in docs/lab-reference.md has the text that the list of faults gives. Write it anew with
//
//	go test ./internal/lab -run TestDocsHaveAllFaults -update
func TestDocsHaveAllFaults(t *testing.T) {
	const file, head = "../../docs/lab-reference.md", "| fault | flag | what it does |\n|---|---|---|\n"
	var rows strings.Builder
	for _, f := range faults {
		name := ""
		if f.Flag != "" {
			name = " `--" + f.Key + "`"
		}
		fmt.Fprintf(&rows, "| %s `%s` |%s | %s |\n", f.Kind, f.Words(), name, f.Help)
	}
	text := string(testkit.Must(os.ReadFile(file))(t))
	before, after, found := strings.Cut(text, head)
	old, after, ends := strings.Cut(after, "\n\n")
	if !found || !ends {
		t.Fatal("no table of faults")
	}
	if *update {
		testkit.OK(t, os.WriteFile(file, []byte(before+head+rows.String()+"\n"+after), 0o644))
	} else if old+"\n" != rows.String() {
		t.Errorf("write it anew with -update: it has\n%s\nnot\n%s", old, rows.String())
	}
}

func lossOf(l *Lab, i int) float64 { return l.Port(i).desc.Link.Up.Loss }

func TestApply(t *testing.T) {
	l := testkit.Must(Open(Uniform(2, NIC{Model: Virtio}, 1<<20), Options{}))(t)
	defer func() { testkit.OK(t, l.Close()) }()
	apply := func(s string) error { return l.Apply(testkit.Must(ParseChange(s))(t)) }
	testkit.OK(t, apply("link port1 loss=5% delay=1ms"))
	testkit.OK(t, apply("link port1 reorder=1%"))
	if im := l.Port(1).desc.Link.Up; im.Loss != 0.05 || im.Delay != time.Millisecond || im.Reorder != 0.01 ||
		lossOf(l, 0) != 0 {
		t.Errorf("%+v", im)
	}
	if err := l.Apply(Change{Kind: "link", Of: "port0", Set: [][2]string{{"loss", "1%"}, {"delay", "x"}}}); err == nil ||
		lossOf(l, 0) != 0 {
		t.Errorf("%v, loss %v", err, lossOf(l, 0))
	}
	if err := apply("link nobody loss=1%"); err == nil || !strings.Contains(err.Error(), "there are port0, port1") {
		t.Errorf("%v", err)
	}
	// A limit needs a rate, before or after it in the change.
	for _, s := range []string{"limit=256K", "loss=1% rate=0 limit=256K"} {
		if err := apply("link port0 " + s); err == nil || !strings.Contains(err.Error(), "say rate, too") || lossOf(l, 0) != 0 {
			t.Errorf("%s: %v, loss %v", s, err, lossOf(l, 0))
		}
	}
	testkit.OK(t, apply("link port0 limit=256K rate=1Gbit"))
	testkit.Equal(t, "limit", l.Port(0).desc.Link.Up.Limit, 256<<10)
	testkit.OK(t, errors.Join(apply("link port0 limit=64K"), apply("link port0 rate=0")))
	if err := apply("link port0 limit=256K"); err == nil {
		t.Error("a limit is taken by a link that has no rate any more")
	}
	for _, s := range []string{"link port0 state=down", "link port0 state=up", "nic port0 p2p=off", "nic port0 p2p=on"} {
		testkit.OK(t, apply(s))
	}
	testkit.OK(t, errors.Join(l.SetScale(10), l.SetScale(0), l.SetScale(1)))
	if im := l.Port(1).desc.Link.Up; im.Delay != time.Millisecond {
		t.Errorf("after scales %+v", im)
	}
}

// The delay of completions scales, up to its maximum. A change with a fault that the model does not have is refused,
// and changes nothing.
func TestNICFaults(t *testing.T) {
	d := Uniform(1, NIC{Model: Virtio}, 0)
	d.Guests = append(d.Guests, Uniform(1, NIC{Model: GVE}, 0).Guests...)
	l := testkit.Must(Open(d, Options{}))(t)
	defer func() { testkit.OK(t, l.Close()) }()
	apply := func(s string) error { return l.Apply(testkit.Must(ParseChange(s))(t)) }
	virtio := l.Port(0).NIC()
	delay := func(want time.Duration) {
		t.Helper()
		testkit.Equal(t, "delay", virtio.CompletionDelay(), want)
	}
	testkit.OK(t, apply("nic port0 completions=5ms exhaust=10s interrupt=lost"))
	delay(5 * time.Millisecond)
	if !virtio.InterruptLost() || virtio.InterruptLost() || virtio.Faults().LostInterrupts != 1 {
		t.Errorf("%+v", virtio.Faults())
	}
	for scale, want := range map[float64]time.Duration{10: 50 * time.Millisecond, 1e6: time.Second, 0: 0} {
		testkit.OK(t, l.SetScale(scale))
		delay(want)
	}
	testkit.OK(t, errors.Join(l.SetScale(2), apply("nic port0 completions=1ms exhaust=0")))
	delay(2 * time.Millisecond)
	if err := apply("nic port0 completions=0 reset=ask"); err == nil || !strings.Contains(err.Error(), "QEMU's") {
		t.Errorf("%v", err)
	}
	delay(2 * time.Millisecond)
	testkit.OK(t, apply("nic port0 completions=0"))
	delay(0)
	testkit.OK(t, apply("nic port1 reset=ask"))
	for _, c := range [][2]string{{"interrupt=off", "lost"}, {"completions=2s", "1s at most"},
		{"completions=-1ms", "1s at most"}, {"exhaust=1m", "10s at most"}, {"exhaust=50%", "10s at most"},
		{"reset=now", "ask"}, {"tokens=11s", "10s at most"}, {"tokens=late", "10s at most"},
		{"remove p2p=off", "does nothing any more"}, {"p2p=no", "on or off"},
		{"loss=1%", "it has p2p, interrupt, completions, exhaust, reset, tokens, remove"}} {
		if _, err := ParseChange("nic port0 " + c[0]); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%v: %v", c, err)
		}
	}
}

func TestScaledLinks(t *testing.T) {
	im := wire.Impairment{Loss: 0.5, Delay: time.Millisecond, Jitter: time.Microsecond, Rate: 1e6, Limit: 5}
	if s := scaled(im, 100); s.Delay != 100*time.Millisecond || s.Jitter != 100*time.Microsecond || s.Rate != 1e4 ||
		s.Limit != 5 || s.Loss != 0.5 {
		t.Errorf("%+v", s)
	}
	if s := scaled(im, 1e9); s.Delay != wire.MaxDelay {
		t.Errorf("%+v", s)
	}
	if s := scaled(im, 0); s.Delay != 0 || s.Rate != 0 || s.Loss != 0.5 {
		t.Errorf("%+v", s)
	}
}

// Play applies changes in the order of their times, none before its time times the scale, also after one has failed.
func TestPlay(t *testing.T) {
	d := Uniform(1, NIC{Model: Virtio}, 0)
	d.Scale = 10
	l := testkit.Must(Open(d, Options{}))(t)
	defer func() { testkit.OK(t, l.Close()) }()
	event := func(when time.Duration, s string) Event { return Event{when, testkit.Must(ParseChange(s))(t)} }
	start, notes := time.Now(), []string{}
	tell := func(e Event, err error) {
		notes = append(notes, e.Told(err))
		if d := time.Since(start); d < 10*e.At {
			t.Errorf("%s after %v", e.Told(err), d)
		}
	}
	l.Play(t.Context(), []Event{event(2*time.Millisecond, "link port0 loss=2%"),
		event(time.Millisecond, "link nobody loss=1%"),
		event(2*time.Millisecond, "link port0 loss=3%")}, tell)
	want := "at 1ms: link nobody loss=1%: nobody is no NIC of the lab: there are port0|at 2ms: link port0 loss=2%|" +
		"at 2ms: link port0 loss=3%"
	if got := strings.Join(notes, "|"); got != want || lossOf(l, 0) != 0.03 {
		t.Errorf("%s; loss %v", got, lossOf(l, 0))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.Play(ctx, []Event{event(time.Hour, "link port0 loss=2%")}, tell)
	testkit.Equal(t, "notes", len(notes), 3)
}

func FuzzParseChange(f *testing.F) {
	for _, s := range []string{"link a.nic0 loss=1% state=down", "nic a p2p=off", "link a gemodel=1%/2%",
		"link a drop=1,2",
		"nic a interrupt=lost completions=5ms exhaust=200ms reset=ask tokens=1ms", "nic a remove", "gpu a.gpu0 remove",
		"gpu a remove remove"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseChange(s)
		if err != nil {
			return
		}
		if again, err := ParseChange(c.String()); err != nil || again.String() != c.String() {
			t.Errorf("%q: %v, %q", s, err, again)
		}
	})
}
