// gpu_dmabuf returns a descriptor of a dma-buf of size bytes (whole pages, at most
// udmabuf.size_limit_mb) of the memory of a NUMA node, in the role of a GPU's; -1 on error.
// Netlink's bind-rx and bind-tx and vnic's devmem/kernel accept such a dma-buf. The memory policy
// applies only to the memfd's mapping, and the memfd keeps it: the program's other memory, and the
// kernel's, is not affected.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <linux/udmabuf.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int gpu_dmabuf(int node, size_t size)
{
	struct udmabuf_create create = { .flags = UDMABUF_FLAGS_CLOEXEC, .size = size };
	unsigned long nodes = 1UL << node;
	int dev, dmabuf = -1, mem = memfd_create("gpu", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	void *map = MAP_FAILED;

	dev = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	if (mem < 0 || dev < 0 || ftruncate(mem, size) || fcntl(mem, F_ADD_SEALS, F_SEAL_SHRINK))
		goto out; // udmabuf wants a file that cannot shrink
	map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, mem, 0);
	if (map == MAP_FAILED || syscall(SYS_mbind, map, size, MPOL_BIND, &nodes, 8 * sizeof(nodes) + 1, 0))
		goto out;
	memset(map, 0, size); // takes the pages now
	create.memfd = mem;
	dmabuf = ioctl(dev, UDMABUF_CREATE, &create);
out:
	if (map != MAP_FAILED)
		munmap(map, size); // or keep it, to look at what was received
	close(mem); // the dma-buf keeps the pages
	close(dev);
	return dmabuf;
}
