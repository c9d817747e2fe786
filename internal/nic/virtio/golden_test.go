package virtio_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/golden"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/virtio"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/vhostuser"
)

// The golden file has what the device offers to a frontend. A configuration space is not part of that: QEMU serves it.
func TestGolden(t *testing.T) {
	var b strings.Builder
	b.WriteString("# What a device offers to a vhost-user frontend\n")
	for _, x := range []struct {
		what  string
		pairs int
		table bool
	}{
		{"one queue pair", 1, false},
		{"two queue pairs", 2, false},
		{"as many queue pairs as there can be", nic.MaxQueuePairs, false},
		{"two queue pairs, memory as a table", 2, true},
	} {
		d, err := virtio.New(virtio.Config{Files: dma.NewFiles(), SetMemTable: x.table,
			Port: nic.Config{Name: "a", MAC: wire.MAC{2, 0, 0, 0, 0, 1}, MTU: 9000, QueuePairs: x.pairs}})
		testkit.OK(t, err)
		offers(&b, x.what, d)
		d.Close()
	}
	golden.Check(t, "testdata/golden", map[string]string{"features": b.String()})
}

func TestFrontendSetsMTU(t *testing.T) {
	w := newWorld(t)
	if d := w.Bad.dev; d.MTU(67) == nil || d.MTU(1400) != nil || d.Port().Limits().MaxFrame != 1414 {
		t.Errorf("limits %+v", d.Port().Limits())
	}
}

func offers(b *strings.Builder, what string, d vhostuser.Device) {
	fmt.Fprintf(b, "\n# %s\nfeatures          %016x\nprotocol features %016x\n", what, d.Features(), d.ProtocolFeatures())
	fmt.Fprintf(b, "queues            %d\nstatus            %d\n", d.MaxQueues(), d.Status())
	if c, ok := d.(vhostuser.QueueCounter); ok {
		fmt.Fprintf(b, "queue number      %d\n", c.QueueNum())
	}
	if n, ok := d.(vhostuser.FeatureNamer); ok {
		for bit, name := range n.FeatureNames() {
			if name != "" {
				fmt.Fprintf(b, "bit %2d            %s, offered: %v\n", bit, name, d.Features()>>bit&1 != 0)
			}
		}
	}
	config := bytes.Repeat([]byte{0xa5}, 24) // GetConfig leaves these bytes as they are
	fmt.Fprintf(b, "read of config    %v\n%x\n", d.GetConfig(0, config), config)
	fmt.Fprintf(b, "write of config   %v\n", d.SetConfig(0, config))
	for bit := range 64 {
		if err := d.SetFeatures(1 << bit); err == nil {
			fmt.Fprintf(b, "taken alone       bit %d\n", bit)
		}
	}
	err := d.SetFeatures(1 << 63)
	fmt.Fprintf(b, "not offered       %v\n", err)
}
