// Stands before a liburing that knows nothing of zero-copy receive, as Debian 13's 2.9: what a test of that wants beside.
// The kernel's header and liburing's copy of it have the same guard, so what the kernel has of io_uring is there.
#include <linux/io_uring.h>
#include_next <liburing.h>

#ifndef VNIC_IO_URING_REGISTER_IFQ
#define VNIC_IO_URING_REGISTER_IFQ
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A ring of buffers that go back to the kernel, as a program keeps it. */
struct io_uring_zcrx_rq {
	__u32 *khead, *ktail;
	__u32 rq_tail;
	unsigned int ring_entries;
	struct io_uring_zcrx_rqe *rqes;
	void *ring_ptr;
};

static inline int io_uring_register_ifq(struct io_uring *ring, struct io_uring_zcrx_ifq_reg *reg)
{
	int ret = syscall(__NR_io_uring_register, ring->ring_fd, IORING_REGISTER_ZCRX_IFQ, reg, 1);

	return ret < 0 ? -errno : ret;
}
#endif
