// The compiler finds this header before liburing's own, if that lacks zero-copy receive, as in Debian
// 13's liburing 2.9, and the kernel's header has it. This header includes liburing's, and adds the
// declarations that a test of zero-copy receive needs. The kernel's header and liburing's copy of it
// have the same include guard, so the kernel's declarations of io_uring are used.
#include <linux/io_uring.h>
#include_next <liburing.h>

#ifndef VNIC_IO_URING_REGISTER_IFQ
#define VNIC_IO_URING_REGISTER_IFQ
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A ring of buffers that a program returns to the kernel, as the program sees it. */
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
