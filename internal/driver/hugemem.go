package driver

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/hugemem"
)

// hugePages returns an allocator of DMA memory in a guest, whose IOVAs are physical addresses. If it needs a huge
// page and none is free, it asks the kernel for one more.
func (s sysfs) hugePages() *hugemem.Memory {
	return &hugemem.Memory{NewPage: func() ([]byte, uint64, error) {
		pagemap := s.path("proc/self/pagemap")
		b, addr, err := hugemem.NewPage(pagemap)
		if !errors.Is(err, unix.ENOMEM) {
			return b, addr, err
		}
		if err := s.reserveHugePage(); err != nil {
			return nil, 0, err
		}
		return hugemem.NewPage(pagemap)
	}}
}

func (s sysfs) reserveHugePage() error {
	path := s.path("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
	have, err := hugemem.ReadInt(path)
	if err != nil {
		return fmt.Errorf("%w: the kernel has no 2 MiB pages: CONFIG_HUGETLBFS", err)
	}
	if err := writeAttr(path, strconv.Itoa(have+1)); err != nil {
		return fmt.Errorf("one more huge page: %w", err)
	}
	switch got, err := hugemem.ReadInt(path); {
	case err != nil:
		return err
	case got <= have:
		return fmt.Errorf("%s stays at %d: the guest has no free 2 MiB any more: give it more memory, or boot with "+
			"hugepages=N: %w", path, have, unix.ENOMEM)
	}
	return nil
}
