// gpu-buffer takes 4 MiB of a GPU that vnicgpu.ko drives, fills it by the CPU, and exports it as a dma-buf.
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vnicgpu.h"

int main(void)
{
	struct vnicgpu_info info;
	struct vnicgpu_alloc alloc = { .size = 4 << 20, .align = 2 << 20 };
	struct vnicgpu_export export = { .size = 4 << 20, .flags = O_CLOEXEC };
	int gpu = open("/dev/vnicgpu0", O_RDWR | O_CLOEXEC);

	if (gpu < 0 || ioctl(gpu, VNICGPU_GET_INFO, &info))
		err(1, "/dev/vnicgpu0");
	if (info.version != VNICGPU_VERSION)
		errx(1, "version %u of the driver, and not %d", info.version, VNICGPU_VERSION);
	if (ioctl(gpu, VNICGPU_ALLOC, &alloc))
		err(1, "VNICGPU_ALLOC");
	char *mem = mmap(NULL, alloc.size, PROT_READ | PROT_WRITE, MAP_SHARED, gpu, alloc.offset);
	if (mem == MAP_FAILED)
		err(1, "mmap");
	memset(mem, 0xa5, alloc.size);
	export.offset = alloc.offset;
	if (ioctl(gpu, VNICGPU_EXPORT, &export))
		err(1, "VNICGPU_EXPORT");
	printf("GPU of %llu MiB; a dma-buf of %lld bytes at 0x%llx, descriptor %d\n",
	       (unsigned long long)info.size >> 20, (long long)lseek(export.fd, 0, SEEK_END),
	       (unsigned long long)alloc.offset, export.fd);
	close(gpu); // the mapping and the dma-buf keep the memory
	return 0;   // export.fd is for bind-rx or bind-tx: guest/docs/devmem.c
}
