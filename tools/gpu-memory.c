// This file is linked into ncdevmem with -Wl,--wrap=memfd_create,--wrap=ioctl. Either of two environment variables
// then makes ncdevmem's buffer a GPU's memory.
//
// GPU_NODE, the number of a NUMA node: the pages of each new memfd come from that node. Shared memory keeps the policy
// of a mapping in its inode (mm/mempolicy.c, mpol_set_shared_policy). A policy for the whole task would also place the
// program's other memory, such as socket buffers, there.
//
// GPU, the path of a device of vnicgpu.ko: the ioctl UDMABUF_CREATE gives ncdevmem a dma-buf of this device's memory.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vnicgpu.h"

#define MPOL_BIND 2      // linux/mempolicy.h
#define SPAN (1UL << 32) // in bytes, more than any buffer; no page of it is touched

int __real_memfd_create(const char *name, unsigned int flags);

int __wrap_memfd_create(const char *name, unsigned int flags)
{
	int fd = __real_memfd_create(name, flags);
	const char *node = getenv("GPU_NODE");
	unsigned long mask;
	void *p;

	if (fd < 0 || !node)
		return fd;
	mask = 1UL << atoi(node);
	p = mmap(NULL, SPAN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (p == MAP_FAILED || syscall(SYS_mbind, p, SPAN, MPOL_BIND, &mask, 8 * sizeof(mask) + 1, 0)) {
		perror("gpu-memory: cannot bind a memfd to GPU_NODE");
		exit(3);
	}
	munmap(p, SPAN);
	return fd;
}

int __real_ioctl(int fd, unsigned long request, void *arg);

static int gpu_buffer(const char *device, unsigned long size)
{
	struct vnicgpu_alloc alloc = { .size = size };
	struct vnicgpu_export export = { .size = size };
	int fd = open(device, O_RDWR | O_CLOEXEC); // the dma-buf keeps its memory after close

	if (fd < 0 || __real_ioctl(fd, VNICGPU_ALLOC, &alloc)) {
		perror(device);
		exit(3);
	}
	export.offset = alloc.offset;
	if (__real_ioctl(fd, VNICGPU_EXPORT, &export)) {
		perror(device);
		exit(3);
	}
	close(fd);
	return export.fd;
}

int __wrap_ioctl(int fd, unsigned long request, ...)
{
	const char *device = getenv("GPU");
	va_list list;
	void *arg;

	va_start(list, request);
	arg = va_arg(list, void *);
	va_end(list);
	if (device && request == UDMABUF_CREATE)
		return gpu_buffer(device, ((struct udmabuf_create *)arg)->size);
	return __real_ioctl(fd, request, arg);
}
