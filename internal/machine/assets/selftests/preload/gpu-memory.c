// Preloaded into the kernel's tests of devmem TCP (ncdevmem) if GPU_NODE is set: it binds the pages of
// memfds, and no other memory of the program, to the NUMA node $GPU_NODE, which is a GPU's memory.
// Shared memory keeps the policy of a mapping in its inode, so the policy outlives the mapping
// (mm/mempolicy.c, mpol_set_shared_policy). A policy of the whole task would also bind its socket buffers.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MPOL_BIND 2      // linux/mempolicy.h
#define SPAN (1UL << 32) // larger than any memfd of the tests; the pages are not touched

int memfd_create(const char *name, unsigned int flags)
{
	int fd = syscall(SYS_memfd_create, name, flags);
	const char *node = getenv("GPU_NODE");
	unsigned long mask;
	void *p;

	if (fd < 0 || !node)
		return fd;
	mask = 1UL << atoi(node);
	p = mmap(NULL, SPAN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (p == MAP_FAILED || syscall(SYS_mbind, p, SPAN, MPOL_BIND, &mask, 8 * sizeof(mask) + 1, 0)) {
		perror("gpu-memory: cannot bind a memfd to $GPU_NODE");
		exit(3);
	}
	munmap(p, SPAN);
	return fd;
}
