package boot

import (
	"fmt"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/lab"
)

// What a guest's memory is used for besides files, as was measured with Linux 6.12 and 7.2: the kernel has keptByKernel
// and a 32nd for itself. Of what is left when the archive lies in memory, rootfs takes up half at most (Linux
// mm/shmem.c, shmem_default_max_blocks), and leftForPrograms of that is not for files that are copied.
const (
	keptByKernel    = 56 << 20
	partOfKernel    = 32
	leftForPrograms = 4 << 20
	// QEMU loads an initramfs below 2 GiB (hw/i386/x86-common.c).
	maxArchive = 2<<30 - 1<<20
)

// checkFits returns an error if the user's files do not fit into each guest beside an image of this size. The size is 0
// while the image is not made yet.
func (o *Options) checkFits(files, image uint64) error {
	all := files + image
	if all > maxArchive {
		return tooMuch("%d MB of files, and %d MB is the most that QEMU loads: copy less, or have the guest fetch it from "+
			"this machine, by its name gateway", files>>20, (maxArchive-image)>>20)
	}
	free := freeFor(o.Memory)
	var node uint64 // gve's GPU memory counts as the guest's for the size of rootfs
	if m, _ := lab.LookupModel(o.NIC); o.Lab == nil && m.Node && o.GPUDriver != lab.DriverVNICGPU {
		node = o.GPUMemory
	}
	// The archive and what is unpacked of it are there at the same time.
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

// freeFor is what a kernel leaves of a guest's memory.
func freeFor(memory uint64) uint64 {
	return memory - min(memory, keptByKernel+memory/partOfKernel)
}

func tooMuch(format string, args ...any) error {
	return &UseError{fmt.Errorf("%w: %s", guestimages.ErrTooMuch, fmt.Sprintf(format, args...))}
}
