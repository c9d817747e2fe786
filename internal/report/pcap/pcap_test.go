package pcap

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func note(t *testing.T) func(string, ...any) {
	return func(format string, args ...any) { t.Errorf("note: "+format, args...) }
}

func TestCheckRefuses(t *testing.T) {
	for _, o := range []Options{{Payload: 1}, {File: "x", Payload: -1}, {File: "x", Payload: 1 << 20}} {
		if err := o.Check(false); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	o := Options{File: "-", Stdout: new(bytes.Buffer)}
	testkit.ErrorSays(t, o.Check(true), "--json")
	testkit.OK(t, o.Check(false))
	testkit.OK(t, (&Options{}).Check(true))
}

func TestBadFileIsSaidBeforeAnythingBegins(t *testing.T) {
	_, err := Start(Options{File: filepath.Join(t.TempDir(), "none", "x.pcapng")}, note(t))
	if err == nil || !strings.HasPrefix(err.Error(), "--pcap: ") ||
		!strings.Contains(err.Error(), "no such file or directory") {
		t.Error(err)
	}
}

func TestWorldIsCaptured(t *testing.T) {
	none, err := Start(Options{}, note(t))
	if none != nil || err != nil || none.Report() != nil {
		t.Fatal(none, err)
	}
	var out bytes.Buffer
	p := testkit.Must(Start(Options{File: "-", Stdout: &out}, note(t)))(t)
	for _, p := range []*Pcap{none, p} {
		w, err := lab.Open(lab.Uniform(2, lab.NIC{Model: lab.Virtio}, 0), lab.Options{Services: []lab.Service{p.Service}})
		testkit.OK(t, err)
		for _, l := range w.Switch().Links() {
			if (l.Tap() != nil) != (p != nil) {
				t.Errorf("port %s: watched by %v", l.Name(), l.Tap())
			}
		}
		testkit.OK(t, w.Close())
	}
	if r := p.Report(); *r != (Report{File: "-"}) || fmt.Sprint(r) != "pcap: -, 0 packets, 0 not captured" {
		t.Errorf("%+v", r)
	}
	if out.Len() == 0 {
		t.Error("an empty file")
	}
}

// TestErrorIsToldAtOnceAndAtTheEnd makes writing fail: note is called once, the Report has the error, and the lab opens
// and closes without an error.
func TestErrorIsToldAtOnceAndAtTheEnd(t *testing.T) {
	notes := make(chan string, 10)
	p, err := Start(Options{File: "/dev/full"}, func(format string, args ...any) { notes <- fmt.Sprintf(format, args...) })
	testkit.OK(t, err)
	w, err := lab.Open(lab.Uniform(1, lab.NIC{Model: lab.GVE}, 0), lab.Options{Services: []lab.Service{p.Service}})
	testkit.OK(t, err)
	if s := <-notes; !strings.Contains(s, "/dev/full") || !strings.Contains(s, "no space left") {
		t.Error(s)
	}
	testkit.OK(t, w.Close())
	if r := p.Report(); !strings.Contains(r.Error, "no space left") || len(notes) != 0 {
		t.Errorf("%+v, noted %d times more", r, len(notes))
	}
}
