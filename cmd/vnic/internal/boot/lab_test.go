package boot

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/lab/labfile"
)

// counted adds up what all NICs have received, when the lab is closed.
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

// Programs find the devices of a lab file by their names, and the GPU that is nearest to each: what they send over a
// rail arrives there, in that GPU, with none of it in host memory.
//
// Invariant: vnic boot: A guest of a lab file has all its NICs and GPUs, each in its place.
func TestGuestsOfALabUseAllTheirNICs(t *testing.T) {
	if testing.Short() {
		t.Skip("QEMU in -short")
	}
	dir := t.TempDir()
	e := exampleProgram{source: testkit.Must(os.ReadFile("testdata/rails.go"))(t)}
	testkit.OK(t, e.build(t.Context(), filepath.Join(dir, "rails")))
	for _, model := range []string{lab.Virtio, lab.GVE} {
		t.Run(model, func(t *testing.T) {
			ignore := goleak.IgnoreCurrent()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			var out, errs bytes.Buffer
			var said strings.Builder
			o := good()
			testkit.OK(t, o.Take(testkit.Must(labfile.Load("testdata/rails-"+model+".yaml", nil))(t)))
			o.Stdout, o.Stderr = &out, &errs
			o.Note = func(format string, args ...any) { fmt.Fprintf(&said, format+"\n", args...) }
			o.Copies, o.Command, o.NoGateway = []string{filepath.Join(dir, "rails") + ":/rails"}, []string{"/rails"}, true
			count := new(counted)
			o.Services = []lab.Service{count.open}
			status, err := Do(ctx, o)
			if err != nil || status != 0 {
				t.Errorf("status %d, %v", status, err)
			}
			for i, gpu := range []int{1, 0} { // the file has them in another order
				if want := fmt.Sprintf("[0] nic%d: 1048576 bytes, GPU %d\n", i, gpu); !strings.Contains(out.String(), want) {
					t.Errorf("not %q", want)
				}
			}
			if count.bounced != 0 || count.device < 2<<20 {
				t.Errorf("%d bytes came to device memory, %d were bounced", count.device, count.bounced)
			}
			if s := said.String(); strings.Contains(s, "address-not-yours") {
				t.Errorf("interfaces answer for each other: %s", s)
			}
			if t.Failed() {
				t.Logf("stdout:\n%sstderr:\n%s", &out, &errs)
			}
			goleak.VerifyNone(t, ignore)
		})
	}
}
