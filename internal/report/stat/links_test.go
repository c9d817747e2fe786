package stat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/testkit"
)

// linkTable returns the table from the heading of the links on, without alignment, or "links" if there is no such
// heading.
func linkTable(t *testing.T, before, now *Snapshot) string {
	var out bytes.Buffer
	testkit.OK(t, Table(&out, before, now))
	_, text, _ := strings.Cut(out.String(), "\nlinks")
	var lines []string
	for line := range strings.Lines("links" + text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func TestTableShowsTheBusiestLinks(t *testing.T) {
	scale := 100.
	before := &Snapshot{PID: 7, Command: "run", Uptime: 10, Scale: &scale, Ports: []PortCounters{{Name: "a.nic0"}},
		Links: []LabLink{{Name: "a.gpu0 up", Rate: 63e9},
			{Name: "a.nic0 out", Rate: 25e9, Payload: 1 << 20, Bytes: 2 << 20, Busy: 1},
			{Name: "a.nic0 up", Payload: 1 << 20, Bytes: 1 << 20}, {Name: "a.s0 memory", Bytes: 5 << 20}}}
	now := new(Snapshot)
	testkit.OK(t, json.Unmarshal(testkit.Must(json.Marshal(before))(t), now))
	now.Uptime = 12
	l := &now.Links[1]
	l.Payload, l.Bytes, l.Busy = 3<<20, 6<<20, 2.5
	now.Links[2].Bytes = 9 << 20
	now.Links = append(now.Links, LabLink{Name: "b.s0 memory", Rate: 1e9, Payload: 2 << 20, Bytes: 2 << 20, Busy: 4})
	testkit.Equal(t, "the table", linkTable(t, before, now), `links, 100 times slower than their rates:
LINK RATE PAYLOAD BIT RATE TAKEN
b.s0 memory 1 GB/s 1.0 MB/s 1.0 MB/s 100 %
a.nic0 out 200Gbit 8.39 Mbit/s 16.8 Mbit/s 75 %
a.nic0 up 0 bit/s 33.6 Mbit/s
a.s0 memory 0 B/s 0 B/s`)
	scale = 1
	testkit.Equal(t, "the table", linkTable(t, nil, before), `links:
LINK RATE PAYLOAD BYTES TAKEN
a.nic0 out 200Gbit 1.0 MiB 2.0 MiB 1.00 s
a.s0 memory 0 B 5.0 MiB
a.nic0 up 1.0 MiB 1.0 MiB`)
	scale = 0
	for i := range 20 {
		before.Links = append(before.Links, LabLink{Name: fmt.Sprint("c.nic", i, " up"), Bytes: 1})
	}
	text := linkTable(t, nil, before)
	if lines := strings.Split(text, "\n"); len(lines) != 2+mostLinks || lines[0] != "links, at the moment not as slow as "+
		"their rates, the busiest of 24 (--json shows all):" {
		t.Error(text)
	}
	before.Links = before.Links[:1] // it has carried nothing
	testkit.Equal(t, "the table", linkTable(t, nil, before), "links")
}

func described() lab.Description {
	d := lab.Uniform(2, lab.NIC{Model: lab.Virtio, Slot: lab.Slot{Below: "s0", Link: pcie.Link{Gen: 4, Width: 16}}}, 4096)
	for i := range d.Guests {
		g := &d.Guests[i]
		g.Sockets, g.GPUs[0].Slot.Below = []lab.Socket{{Name: "s0"}}, "s0"
	}
	return d
}

func TestLinksNeverGoBack(t *testing.T) {
	l := testkit.Must(lab.Open(described(), lab.Options{}))(t)
	defer l.Close()
	x := newLinks(l)
	list, scale := x.read()
	if len(list) != 4 || scale == nil || *scale != 1 { // only the links of two NICs have a rate, in each direction
		t.Fatalf("%+v, %v", list, scale)
	}
	for _, e := range l.Edges() {
		x.shown[e] = lab.Carried{Payload: 7, Bytes: 9.5}
	}
	list, _ = x.read()
	for _, l := range list {
		if l.Payload != 7 || l.Bytes != 9 {
			t.Errorf("%+v", l)
		}
	}
}

func TestLinksThatNobodyDescribedAreNotShown(t *testing.T) {
	l := testkit.Must(lab.Open(lab.Uniform(2, lab.NIC{Model: lab.Virtio}, 4096), lab.Options{}))(t)
	defer l.Close()
	if x := newLinks(l); x != nil {
		t.Errorf("%+v", x)
	}
}
