package driver

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/control"
)

// IdentifyGPUs asks the NIC which GPUs it reaches and where their memory is. It replaces the numbers that OpenPCI has
// given to GPUs by the NIC's. [NIC.GPUs] then returns, in the order of the NIC's list, the GPUs that the NIC reaches
// and the guest sees as BARs. It must be called before [NIC.Start]. ENODEV: a GPU of the NIC's list should be a BAR,
// and none of the NIC's GPUs has its address and size.
func (n *NIC) IdentifyGPUs(ctx context.Context) error {
	list, err := n.ctl.GPUs(ctx)
	if err != nil {
		return fmt.Errorf("asking the NIC for its GPUs: %w", err)
	}
	maps, err := n.ctl.GPUMaps(ctx)
	if err != nil {
		return fmt.Errorf("asking the NIC where GPU memory is: %w", err)
	}
	var gpus []GPUInfo
	for _, g := range list {
		if g.Attach != control.AttachBAR {
			continue
		}
		found, err := n.gpuAt(g, maps)
		if err != nil {
			return err
		}
		gpus = append(gpus, found)
	}
	n.gpusMu.Lock()
	defer n.gpusMu.Unlock()
	n.gpus = gpus
	n.gpusLost.Store(0)
	return nil
}

func (n *NIC) gpuAt(g control.GPUInfo, maps []control.GPUMap) (found GPUInfo, err error) {
	for _, m := range maps {
		if m.GPU != g.ID {
			continue
		}
		i := slices.IndexFunc(n.gpus, func(d GPUInfo) bool { return d.Addr == m.IOVA-m.Off })
		if i < 0 {
			continue
		}
		found = n.gpus[i]
		if found.Size != g.Size {
			return found, fmt.Errorf("GPU at %s has a BAR of %d bytes, the NIC says %d: %w", found.PCI, found.Size, g.Size,
				unix.ENODEV)
		}
		found.ID = int(g.ID)
		return found, nil
	}
	return found, fmt.Errorf("the NIC knows of GPU %d, of %d bytes, and no PCI device has its memory: %w", g.ID, g.Size,
		unix.ENODEV)
}
