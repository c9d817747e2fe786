package driver

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/control"
)

// IdentifyGPUs asks the NIC how it numbers the GPUs whose BARs were found on the PCI bus, and
// numbers them so: until then they are numbered by their PCI addresses. Both lists are in the order
// of the bus. It is called before Start.
func (n *NIC) IdentifyGPUs(ctx context.Context) error {
	list, err := n.ctl.GPUs(ctx)
	if err != nil {
		return fmt.Errorf("asking the NIC for its GPUs: %w", err)
	}
	i := 0
	for _, g := range list {
		if g.Attach != control.AttachBAR {
			continue
		}
		if i == len(n.gpus) {
			return fmt.Errorf("the NIC knows of GPU %d, of %d bytes, and no PCI device is left to be it: %w", g.ID, g.Size,
				unix.ENODEV)
		}
		if n.gpus[i].Size != g.Size {
			return fmt.Errorf("GPU at %s has a BAR of %d bytes, the NIC says %d: %w", n.gpus[i].PCI, n.gpus[i].Size, g.Size,
				unix.ENODEV)
		}
		n.gpus[i].ID = int(g.ID)
		i++
	}
	n.gpus = n.gpus[:i] // the NIC cannot reach the rest
	return nil
}
