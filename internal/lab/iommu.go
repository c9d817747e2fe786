package lab

import (
	"errors"

	"vnic.dev/vnic/dma"
)

// checkIOMMU refuses an IOMMU for devices that QEMU (11.1) does not have behind it, or that are not reached through it.
// QEMU has no traffic inside a PCIe switch: what a NIC sends to a GPU's BAR goes to the IOMMU, which knows the bus
// address only where Linux maps it, and Linux does so across host bridges alone (drivers/pci/p2pdma.c). Elsewhere it
// would wait for ever.
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

// SetMemory maps the memory of a guest with an IOMMU by physical address, as its programs' commands
// name it, until the next call or until the lab is closed. For another guest it does nothing: there
// QEMU reports the memory to the NICs. The maps' descriptors stay the caller's.
func (m *Machine) SetMemory(maps []dma.Map) error {
	var errs []error
	for _, p := range m.Ports {
		if p.memory != nil {
			errs = append(errs, p.memory.Replace(maps))
		}
	}
	return errors.Join(errs...)
}

// Translated reports whether the guest's IOMMU translates the NIC's addresses: there are maps, and none at address 0.
// Without translation QEMU maps all of RAM, from 0 on; Linux gives a device no address in the first page
// (drivers/iommu/dma-iommu.c, iommu_dma_init_domain).
func (p *Port) Translated() bool {
	regions := p.Space().Regions()
	return len(regions) > 0 && regions[0].IOVA != 0
}
