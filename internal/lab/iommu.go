package lab

import (
	"errors"

	"vnic.dev/vnic/dma"
)

// checkIOMMU returns an error for a guest with an IOMMU and devices that QEMU (11.1) does not put behind it,
// or whose memory cannot be reached through it. QEMU's PCIe switches forward no request from one device
// below them to another: a NIC's request for a GPU's BAR goes to the IOMMU, and Linux maps the BAR there only
// across host bridges (drivers/pci/p2pdma.c).
func (g *Guest) checkIOMMU() error {
	if !g.IOMMU {
		return nil
	}
	for _, n := range g.NICs {
		if m, _ := LookupModel(n.Model); !m.VFIOUser {
			return g.wrong("iommu", "", "for guests whose NICs are all of model %s: our driver gives the NIC physical "+
				"addresses, and QEMU's %s takes them past an IOMMU", GVE, n.Model)
		}
	}
	if g.Driver == DriverVNICGPU && len(g.GPUs) > 0 {
		return g.wrong("iommu", "", "not for guests whose GPUs have the driver %s: QEMU's IOMMU has no map of a GPU's BAR "+
			"where NIC and GPU are below one switch, and bound memory would wait for ever: take the driver %s",
			DriverVNICGPU, DriverNode)
	}
	return nil
}

// SetMemory replaces the maps of a guest's memory by physical address. The guest's NICs use them for the commands
// of vnic's programs, whose addresses no IOMMU translates. For a guest without an IOMMU SetMemory does nothing.
// The caller still owns the maps' descriptors.
func (m *Machine) SetMemory(maps []dma.Map) error {
	var errs []error
	for _, p := range m.Ports {
		if p.memory != nil {
			errs = append(errs, p.memory.Replace(maps))
		}
	}
	return errors.Join(errs...)
}

// Translated reports whether an IOMMU translates the addresses of a NIC in QEMU: the lowest mapped address is
// not 0. It returns false while nothing is mapped. Without translation QEMU maps RAM from 0 on; Linux gives a
// device no address in the first page (drivers/iommu/dma-iommu.c, iommu_dma_init_domain).
func (p *Port) Translated() bool {
	regions := p.Space().Regions()
	return len(regions) > 0 && regions[0].IOVA != 0
}
