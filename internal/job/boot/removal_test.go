package boot

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/testkit"
)

// During its stream, a NIC on the kernel's virtio_net is removed; the stream over the second NIC arrives whole. A NIC
// on the root complex cannot be removed.
func TestStockDriverLosesItsNIC(t *testing.T) {
	testkit.Boots(t)
	ignore := goleak.IgnoreCurrent()
	dir := t.TempDir()
	e := exampleProgram{source: testkit.Must(os.ReadFile("testdata/stock.go"))(t)}
	testkit.OK(t, e.build(t.Context(), filepath.Join(dir, "stock")))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	var mu sync.Mutex
	var output strings.Builder
	o := good()
	file := testkit.Must(labfile.Load("testdata/rails-virtio.yaml", nil))(t)
	file.Guests[1].NICs[0].Hotplug = true
	remove := testkit.Must(lab.ParseChange("nic b.nic0 remove"))(t)
	file.Script = append(file.Script, lab.Event{At: 3 * time.Second, Change: remove})
	refused := testkit.Must(lab.ParseChange("nic a.kernel.eth0 remove"))(t)
	file.Script = append(file.Script, lab.Event{At: time.Second, Change: refused})
	testkit.OK(t, o.Take(file))
	o.Stdout, o.Stderr = &out, &errs
	o.Note = func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(&output, format+"\n", args...)
	}
	o.Copies, o.Command, o.NoGateway = []string{filepath.Join(dir, "stock") + ":/stock"}, []string{"/stock"}, true
	status, err := Do(ctx, o)
	if err != nil || status != 0 {
		t.Errorf("status %d, %v", status, err)
	}
	for _, want := range []string{"[1] nic0: its interface is gone\n", "[0] nic0: nothing came any more: ", "i/o timeout",
		"[0] nic1: whole\n", "[1] nic1: whole\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("not %q", want)
		}
	}
	for _, want := range []string{"b.nic0: has been removed\n", "a.kernel.eth0 cannot be removed: it is on the root complex"} {
		if !strings.Contains(output.String(), want) {
			t.Errorf("no note %q", want)
		}
	}
	if t.Failed() {
		t.Logf("stdout:\n%sstderr:\n%ssaid:\n%s", &out, &errs, &output)
	}
	goleak.VerifyNone(t, ignore)
}
