package boot

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/guesttree"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/testkit"
)

// counted is a service of the lab whose Close adds up the NICs' counters: payload received in GPU memory (device), and
// payload, sent or received, that was bounced by host memory.
type counted struct {
	lab             *lab.Lab
	device, bounced uint64
}

func (c *counted) open(l *lab.Lab) (io.Closer, error) {
	c.lab = l
	return c, nil
}

func (c *counted) Close() error {
	for _, p := range c.lab.Ports() {
		n, err := p.NIC().PortCounters()
		if err != nil {
			return err
		}
		c.device, c.bounced = c.device+n.Rx.DeviceBytes, c.bounced+n.Rx.BouncedBytes+n.Tx.BouncedBytes
	}
	return nil
}

// boot takes what vnic lab show prints for a preset. It refuses some names of guests, and gives each NIC a MAC of its
// own.
func TestLabsThatAreTaken(t *testing.T) {
	full := testkit.Must(testkit.Must(labfile.Load("pair", nil))(t).YAML())(t)
	for text, want := range map[string]string{
		string(full): "",
		"{a: {nics: [{name: n, mac: '02:76:6e:69:00:fa'}, {name: m, mac: '02:76:6e:69:00:f9'}]}, b: {nics: [{name: n}]}}": "",
		"{guest0: {nics: [{name: n}]}, guest1: {nics: [{name: n}]}}":                                                      "",
		"{guest1: {nics: [{name: n}]}}":                                "cannot be called guest1",
		"gateway: off\nguests: {gateway: {nics: [{name: n}]}}":         "cannot be called gateway",
		"gateway: off\nguests: {localhost: {nics: [{name: n}]}}":       "cannot be called localhost",
		"{a: {nics: [{name: n}]}, guest0-devmem: {nics: [{name: n}]}}": "cannot be called guest0-devmem",
		"{a: {nics: [{name: n, ipv4: 10.0.0.1/24}]}}":                  "",
		"{a: {nics: [{name: nica}]}}":                                  "",
		"{a: {nics: [{name: n}, {name: m, model: gve}]}}":              "",
		"{a: {nics: [{name: n, model: gve}, {name: m}]}}":              "",
	} {
		o := good()
		if text[0] == '{' {
			text = "guests: " + text
		}
		err := o.Take(testkit.Must(labfile.Parse("f", []byte(text)))(t))
		if want != "" {
			testkit.ErrorSays(t, err, want)
			continue
		}
		testkit.OK(t, err)
		w := testkit.Must(lab.Open(o.describe(), lab.Options{}))(t)
		macs := make(map[string]bool)
		for _, p := range w.Ports() {
			if macs[mac(p)] {
				t.Errorf("%s: %s is another's, too", text, mac(p))
			}
			macs[mac(p)] = true
		}
		testkit.OK(t, w.Close())
	}
}

// differences lists the pairs of NIC and GPU that the guest's kernel judges otherwise than the lab. It returns an error
// if a device of the lab is missing or elsewhere in the guest's tree.
func TestTreesAreCompared(t *testing.T) {
	o := good()
	testkit.OK(t, o.Take(testkit.Must(labfile.Load("acs", nil))(t)))
	w := testkit.Must(lab.Open(o.describe(), lab.Options{}))(t)
	defer w.Close()
	const nic, gpu0, gpu1 = "0000:13:00.0", "0000:14:00.0", "0000:15:00.0"
	nodes := []pcie.Node{{Name: "pci0000:10", Kind: pcie.Socket}, {Name: "0000:12:00.0", Kind: pcie.Switch,
		Below: "pci0000:10"}, {Name: "pci0000:00", Kind: pcie.Socket},
		{Name: "0000:00:03.0", Kind: pcie.Endpoint, Below: "pci0000:00"}}
	for _, name := range []string{nic, gpu0, gpu1} {
		nodes = append(nodes, pcie.Node{Name: name, Kind: pcie.Endpoint, Below: "0000:12:00.0"})
	}
	seen := &guesttree.Tree{Tree: testkit.Must(pcie.New(nodes))(t), Ends: []string{"0000:00:03.0", nic, gpu0, gpu1}}
	g := &guest{runner: &runner{opt: &o}, place: o.places(w)[0],
		network: guestnet.Result{Interfaces: []guestnet.Found{{Name: "eth0", PCI: "0000:00:03.0"}, {PCI: nic}}}}
	list := testkit.Must(g.differences(seen))(t)
	if len(list) != 1 || list[0].Some() != "nic0-gpu1" || !strings.Contains(list[0].Text, "allows it: QEMU's switches") {
		t.Errorf("%+v", list)
	}
	seen.Ends = seen.Ends[:3]
	testkit.ErrorSays(t, testkit.Err(g.differences(seen)), "it has 2 NICs and GPUs of 3")
	seen.Ends = []string{gpu0, nic, gpu1}
	testkit.ErrorSays(t, testkit.Err(g.differences(seen)), "nic0 is at "+nic+", and not at "+gpu0)
}

// Programs find a lab file's devices by name; bytes that a NIC receives arrive in the GPU below the same switch.
//
// Invariant: vnic boot: A guest of a lab file has all its NICs and GPUs, each in its place.
func TestGuestsOfALabUseAllTheirNICs(t *testing.T) {
	testkit.Boots(t)
	dir := t.TempDir()
	e := exampleProgram{source: testkit.Must(os.ReadFile("testdata/rails.go"))(t)}
	testkit.OK(t, e.build(t.Context(), filepath.Join(dir, "rails")))
	for _, model := range []string{lab.Virtio, lab.GVE, "mixed"} {
		t.Run(model, func(t *testing.T) {
			ignore := goleak.IgnoreCurrent()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			var out, errs bytes.Buffer
			var output strings.Builder
			o := good()
			testkit.OK(t, o.Take(testkit.Must(labfile.Load("testdata/rails-"+model+".yaml", nil))(t)))
			o.Stdout, o.Stderr, o.LogDir = &out, &errs, t.TempDir()
			var mu sync.Mutex
			o.Note = func(format string, args ...any) {
				mu.Lock()
				defer mu.Unlock()
				fmt.Fprintf(&output, format+"\n", args...)
			}
			o.Copies, o.Command, o.NoGateway = []string{filepath.Join(dir, "rails") + ":/rails"}, []string{"/rails"}, true
			count := new(counted)
			o.Services = []lab.Service{count.open}
			status, err := Do(ctx, o)
			if err != nil || status != 0 {
				t.Errorf("status %d, %v", status, err)
			}
			for i, gpu := range []int{1, 0} { // the file lists the GPUs in reverse order
				if want := fmt.Sprintf("[0] nic%d: 1048576 bytes, GPU %d\n", i, gpu); !strings.Contains(out.String(), want) {
					t.Errorf("not %q", want)
				}
			}
			if count.bounced != 0 || count.device < 2<<20 {
				t.Errorf("%d bytes came to device memory, %d were bounced", count.device, count.bounced)
			}
			if given := "[0] nic0 at 192.0.2.20"; model == "mixed" && !strings.Contains(out.String(), given) {
				t.Errorf("not %q", given)
			}
			differs := "a: nic0-gpu1 nic1-gpu0: Linux in this guest refuses it: its CPU is none whose host bridges are known"
			if s := output.String(); strings.Contains(s, differs) != (model == lab.GVE) ||
				strings.Count(s, "Linux") != strings.Count(s, "-gpu1 ") {
				t.Errorf("notes about Linux's verdicts: %s", s)
			}
			if s := output.String(); strings.Contains(s, "address-not-yours") {
				t.Errorf("interfaces answer for each other: %s", s)
			}
			if t.Failed() {
				t.Logf("said:\n%sstdout:\n%sstderr:\n%s", &output, &out, &errs)
				for _, f := range testkit.Must(filepath.Glob(filepath.Join(o.LogDir, "*")))(t) {
					b := testkit.Must(os.ReadFile(f))(t)
					t.Logf("the end of %s:\n%s", filepath.Base(f), b[max(0, len(b)-4096):])
				}
			}
			goleak.VerifyNone(t, ignore)
		})
	}
}
