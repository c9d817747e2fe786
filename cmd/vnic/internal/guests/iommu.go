package guests

import (
	"fmt"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/assets"
)

// checkTranslation returns an error if a guest has an IOMMU and its kernel does not translate the addresses of
// a NIC that the guest has taken.
func checkTranslation(hw *lab.Machine, nic *lab.Port) error {
	if !hw.IOMMU || nic.Translated() {
		return nil
	}
	return &assets.Missing{What: "a kernel that translates addresses",
		Err: fmt.Errorf("guest %s has an IOMMU, and its kernel uses none for %s: guest RAM is mapped as it is", hw.Name,
			nic.Name),
		Fix: "build it with CONFIG_INTEL_IOMMU, and say no iommu=pt"}
}
