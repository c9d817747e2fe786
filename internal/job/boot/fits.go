package boot

import (
	"fmt"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/lab"
)

// A guest's kernel needs keptByKernel bytes and a 32nd of all memory (measured with Linux 6.12 and 7.2). rootfs
// takes at most half of the rest (Linux mm/shmem.c, shmem_default_max_blocks); leftForPrograms bytes of that
// half are kept free.
const (
	keptByKernel    = 56 << 20
	partOfKernel    = 32
	leftForPrograms = 4 << 20
	// QEMU loads an initramfs into the RAM below 4 GiB (hw/i386/x86-common.c): 2 GiB on q35 in a guest with enough
	// RAM for such an archive (hw/i386/pc_q35.c).
	maxArchive = 2<<30 - 1<<20
)

// checkFits returns an error if as many bytes of files as the parameter files do not fit into a guest beside an
// initramfs of as many bytes as the parameter image, which is 0 before the initramfs is made.
func (o *Options) checkFits(files, image uint64) error {
	all := files + image
	if all > maxArchive {
		return tooMuch("%d MB of files, and %d MB is the most that QEMU loads: copy less, or have the guest fetch it from "+
			"this machine, by its name gateway", files>>20, (maxArchive-image)>>20)
	}
	free := freeFor(o.Memory)
	var node uint64 // bytes of GPU memory that is a NUMA node: Linux counts it for the size of rootfs
	if m, _ := lab.LookupModel(o.NIC); o.Lab == nil && m.Node && o.GPUDriver != lab.DriverVNICGPU {
		node = o.GPUMemory
	}
	// The archive and its files are in memory at the same time, and rootfs takes half of what the archive leaves.
	if most := min(free/2, (free+node)/3); all+leftForPrograms > most {
		need := o.Memory
		for step := uint64(2 << 20); min(freeFor(need)/2, (freeFor(need)+node)/3) < all+leftForPrograms; {
			need += step
		}
		return tooMuch("%d MB of files, and with %d MB of RAM a guest has room for %d: --memory %dM or more, or copy less",
			files>>20, o.Memory>>20, (most-min(most, image+leftForPrograms))>>20, need>>20)
	}
	return nil
}

func freeFor(memory uint64) uint64 {
	return memory - min(memory, keptByKernel+memory/partOfKernel)
}

func tooMuch(format string, args ...any) error {
	return &UseError{fmt.Errorf("%w: %s", guestimages.ErrTooMuch, fmt.Sprintf(format, args...))}
}
