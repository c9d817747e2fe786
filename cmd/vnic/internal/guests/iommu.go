package guests

import (
	"fmt"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/assets"
)

// CheckTranslation sees whether the kernel of a guest with an IOMMU translates what a NIC addresses. The guest has
// taken the NIC.
func CheckTranslation(hw *lab.Machine, nic *lab.Port) error {
	if !hw.IOMMU || nic.Translated() {
		return nil
	}
	return &assets.Missing{What: "a kernel that translates addresses",
		Err: fmt.Errorf("guest %s has an IOMMU, and its kernel uses none for %s: guest RAM is mapped as it is", hw.Name,
			nic.Name),
		Fix: "build it with CONFIG_INTEL_IOMMU, and say no iommu=pt"}
}
