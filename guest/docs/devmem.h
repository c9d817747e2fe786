// devmem.h uses Linux's own API for device memory TCP (Documentation/networking/devmem.rst). It needs only libc and
// Linux's headers: copy it, or the parts that you need.
//
// Only gpu_memory() is particular to vnic: it asks vnic's socket for a dma-buf, in place of a GPU's
// driver. A function that fails prints the error and ends the program. But ethtool and send_devmem return -1, and ask
// sets errno to an error that the kernel answers.
#ifndef DEVMEM_H
#define DEVMEM_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/dma-buf.h>
#include <linux/errqueue.h>
#include <linux/ethtool.h>
#include <linux/ethtool_netlink.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define IFACE "eth0"

// Constants and structs that not all versions of the headers have: linux/netdev.h, linux/ethtool_netlink.h,
// asm/socket.h and linux/uio.h have them in Linux 6.16, except MSG_SOCK_DEVMEM (include/linux/socket.h in the kernel).
enum { BIND_RX = 13, BIND_TX = 15 };                                      // NETDEV_CMD_*
enum { DMABUF_IFINDEX = 1, DMABUF_QUEUES = 2, DMABUF_FD = 3, DMABUF_ID = 4 }; // NETDEV_A_DMABUF_*
enum { QUEUE_ID = 1, QUEUE_TYPE = 3, QUEUE_TYPE_RX = 0 };                 // NETDEV_A_QUEUE_*
enum { RINGS_TCP_DATA_SPLIT = 11, TCP_DATA_SPLIT_ON = 2 };                // ETHTOOL_A_RINGS_*
#define MSG_SOCK_DEVMEM 0x2000000
#define SCM_DEVMEM_LINEAR 78
#define SCM_DEVMEM_DMABUF 79
#define SO_DEVMEM_DONTNEED 80
struct dmabuf_cmsg { uint64_t frag_offset; uint32_t frag_size, frag_token, dmabuf_id, flags; };
struct dmabuf_token { uint32_t token_start, token_count; };

static inline void die(const char *what)
{
	fprintf(stderr, "devmem: %s: %s\n", what, strerror(errno));
	exit(1);
}

static inline void check(int ok, const char *what)
{
	if (!ok)
		die(what);
}

// gpu_memory returns a dma-buf of size bytes of GPU memory, a multiple of 4096, and sets *map to a mapping for the
// CPU. It leaves the socket to vnic open: while the socket is open, the NIC treats the memory as the GPU's.
static inline int gpu_memory(uint64_t size, uint8_t **map)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), err = 0, fd = -1;
	char control[CMSG_SPACE(sizeof fd)];
	struct iovec iov = { &err, sizeof err };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	const char *path = getenv("VNIC_GPU");

	errno = ENODEV;
	check(path != NULL, "no VNIC_GPU: run by vnic boot --nic gve");
	strncpy(to.sun_path, path, sizeof to.sun_path - 1);
	check(!connect(s, (struct sockaddr *)&to, sizeof to), path);
	check(send(s, &size, sizeof size, 0) == sizeof size, path);
	check(recvmsg(s, &m, 0) == sizeof err, path);
	errno = err;
	check(err == 0 && CMSG_FIRSTHDR(&m), "GPU memory");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	*map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	check(*map != MAP_FAILED, "mmap of GPU memory");
	return fd;
}

// cpu_access begins or ends, by flags, the CPU's access to a dma-buf (Documentation/driver-api/dma-buf.rst).
static inline void cpu_access(int dmabuf, uint64_t flags)
{
	struct dma_buf_sync sync = { flags };

	check(!ioctl(dmabuf, DMA_BUF_IOCTL_SYNC, &sync), "DMA_BUF_IOCTL_SYNC");
}

// A request of generic netlink consists of headers and attributes. ask sends one, and returns the value of the answer's
// attribute of type want, which must have 2 or 4 bytes. If want is 0, ask requests an acknowledgement, and returns 0.
// It sets errno to the answer's error, EPROTO if the attribute is missing, or 0. After an error it returns 0.
struct request {
	struct nlmsghdr n;
	struct genlmsghdr g;
	char attrs[256];
};

static inline struct nlattr *put(struct request *r, int type, const void *data, int len)
{
	struct nlattr *a = (void *)((char *)r + NLMSG_ALIGN(r->n.nlmsg_len));

	a->nla_type = type;
	a->nla_len = NLA_HDRLEN + len;
	if (data)
		memcpy(a + 1, data, len);
	r->n.nlmsg_len = NLMSG_ALIGN(r->n.nlmsg_len) + NLA_ALIGN(a->nla_len);
	return a;
}

static inline void put32(struct request *r, int type, uint32_t v) { put(r, type, &v, sizeof v); }

static inline struct nlattr *nest(struct request *r, int type) { return put(r, type | NLA_F_NESTED, NULL, 0); }

static inline void end(struct request *r, struct nlattr *a) { a->nla_len = (char *)r + r->n.nlmsg_len - (char *)a; }

static inline uint32_t ask(int nl, struct request *r, int want)
{
	static char b[16384];
	struct nlmsghdr *n = (void *)b;

	r->n.nlmsg_flags = NLM_F_REQUEST | (want ? 0 : NLM_F_ACK);
	check(send(nl, r, r->n.nlmsg_len, 0) >= 0, "netlink");
	check(recv(nl, b, sizeof b, 0) >= NLMSG_HDRLEN, "netlink");
	if (n->nlmsg_type == NLMSG_ERROR) {
		errno = -((struct nlmsgerr *)NLMSG_DATA(n))->error;
		return 0;
	}
	errno = 0;
	for (char *p = (char *)NLMSG_DATA(n) + GENL_HDRLEN; p < b + n->nlmsg_len;) {
		struct nlattr *a = (void *)p;

		p += NLA_ALIGN(a->nla_len);
		if (a->nla_type == want)
			return a->nla_len - NLA_HDRLEN == 2 ? *(uint16_t *)(a + 1) : *(uint32_t *)(a + 1);
	}
	errno = EPROTO;
	return 0;
}

static inline struct request command(int family, int cmd)
{
	return (struct request){ .n = { .nlmsg_len = NLMSG_LENGTH(GENL_HDRLEN), .nlmsg_type = family },
				 .g = { .cmd = cmd, .version = 1 } };
}

static inline int family(int nl, const char *name)
{
	struct request r = command(GENL_ID_CTRL, CTRL_CMD_GETFAMILY);
	int id;

	put(&r, CTRL_ATTR_FAMILY_NAME, name, strlen(name) + 1);
	id = ask(nl, &r, CTRL_ATTR_FAMILY_ID);
	check(id > 0, name);
	return id;
}

static inline int netlink(void)
{
	int nl = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC);

	check(nl >= 0, "netlink");
	return nl;
}

// bind_memory binds a dma-buf to a receive queue, or if queue is -1 for transmit, and returns the binding's ID. The
// binding lives as long as its netlink socket, which bind_memory leaves open.
static inline uint32_t bind_memory(int dmabuf, int queue)
{
	int nl = netlink();
	struct request r = command(family(nl, "netdev"), queue < 0 ? BIND_TX : BIND_RX);
	uint32_t id;

	put32(&r, DMABUF_IFINDEX, if_nametoindex(IFACE));
	put32(&r, DMABUF_FD, dmabuf);
	if (queue >= 0) {
		struct nlattr *q = nest(&r, DMABUF_QUEUES);

		put32(&r, QUEUE_ID, queue);
		put32(&r, QUEUE_TYPE, QUEUE_TYPE_RX);
		end(&r, q);
	}
	id = ask(nl, &r, DMABUF_ID);
	check(id > 0, queue < 0 ? "bind-tx" : "bind-rx");
	return id;
}

static inline int ethtool(int s, void *cmd)
{
	struct ifreq ifr = { .ifr_name = IFACE, .ifr_data = cmd };

	return ioctl(s, SIOCETHTOOL, &ifr);
}

// steer sets up the interface for device memory, and returns its last receive queue. It turns on header split, steers
// TCP packets to the given address and port to the last queue, and excludes this queue from RSS. It does what ethtool
// does by -G tcp-data-split on, -X equal N-1, -K ntuple on, -N flow-type tcp4 ... action N-1, with N queues.
static inline int steer(struct sockaddr_in *to)
{
	struct request r = { 0 };
	struct nlattr *header;
	uint8_t on = TCP_DATA_SPLIT_ON;
	struct ethtool_value flags = { .cmd = ETHTOOL_GFLAGS };
	struct ethtool_rxnfc rule = { .cmd = ETHTOOL_GRXRINGS };
	struct ethtool_rxfh_indir size = { .cmd = ETHTOOL_GRXFHINDIR }, *rss;
	int nl = netlink(), s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), queues;

	r = command(family(nl, "ethtool"), ETHTOOL_MSG_RINGS_SET);
	header = nest(&r, ETHTOOL_A_RINGS_HEADER);
	put32(&r, ETHTOOL_A_HEADER_DEV_INDEX, if_nametoindex(IFACE));
	end(&r, header);
	put(&r, RINGS_TCP_DATA_SPLIT, &on, sizeof on);
	ask(nl, &r, 0);
	check(errno == 0, "tcp-data-split");
	close(nl);

	check(!ethtool(s, &rule), "number of queues");
	queues = rule.data;
	errno = ENODEV;
	check(queues > 1, "a queue to spare");
	check(!ethtool(s, &size), "RSS");
	rss = calloc(1, sizeof *rss + size.size * sizeof rss->ring_index[0]);
	check(rss != NULL, "RSS");
	rss->cmd = ETHTOOL_SRXFHINDIR;
	rss->size = size.size;
	for (unsigned i = 0; i < size.size; i++)
		rss->ring_index[i] = i % (queues - 1);
	check(!ethtool(s, rss), "RSS");
	free(rss);

	check(!ethtool(s, &flags), "ntuple");
	flags.cmd = ETHTOOL_SFLAGS;
	flags.data |= ETH_FLAG_NTUPLE;
	check(!ethtool(s, &flags), "ntuple");
	rule = (struct ethtool_rxnfc){ .cmd = ETHTOOL_SRXCLSRLINS,
				       .fs = { .flow_type = TCP_V4_FLOW, .ring_cookie = queues - 1 } };
	rule.fs.h_u.tcp_ip4_spec.ip4dst = to->sin_addr.s_addr;
	rule.fs.h_u.tcp_ip4_spec.pdst = to->sin_port;
	rule.fs.m_u.tcp_ip4_spec.ip4dst = 0xffffffff;
	rule.fs.m_u.tcp_ip4_spec.pdst = 0xffff;
	check(!ethtool(s, &rule), "flow rule");
	close(s);
	return queues - 1;
}

static inline struct sockaddr_in address(const char *name, const char *port)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *a;
	struct sockaddr_in sin;
	int err = getaddrinfo(name, port, &hints, &a);

	if (err) {
		fprintf(stderr, "devmem: %s: %s\n", name, gai_strerror(err));
		exit(1);
	}
	memcpy(&sin, a->ai_addr, sizeof sin);
	freeaddrinfo(a);
	return sin;
}

// completed adds completions to *done, the number of complete sends so far, until it is at least calls. The program may
// change the memory of a complete send.
static inline void completed(int s, uint32_t *done, uint32_t calls)
{
	while (*done < calls) {
		char control[256];
		struct msghdr m = { .msg_control = control, .msg_controllen = sizeof control };
		struct pollfd p = { .fd = s }; // poll always reports POLLERR

		check(poll(&p, 1, -1) == 1, "poll");
		if (recvmsg(s, &m, MSG_ERRQUEUE) < 0) { // no completion: the connection is broken
			socklen_t len = sizeof errno;
			getsockopt(s, SOL_SOCKET, SO_ERROR, &errno, &len);
			die("completions");
		}
		for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
			struct sock_extended_err *e = (void *)CMSG_DATA(h);

			if (h->cmsg_level == SOL_IP && h->cmsg_type == IP_RECVERR && e->ee_origin == SO_EE_ORIGIN_ZEROCOPY)
				*done += e->ee_data - e->ee_info + 1;
		}
	}
}

// send_devmem queues for transmit up to n bytes, at most 1 MiB, of the dma-buf with binding id, from offset at on. It
// returns how many bytes it queued, or -1. The bytes must not change before the send is complete (completed).
static inline ssize_t send_devmem(int s, uint32_t id, uint64_t at, size_t n)
{
	char control[CMSG_SPACE(sizeof id)] = { 0 };
	struct iovec iov = { (void *)at, n < 1 << 20 ? n : 1 << 20 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);

	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_DEVMEM_DMABUF;
	h->cmsg_len = CMSG_LEN(sizeof id);
	memcpy(CMSG_DATA(h), &id, sizeof id);
	return sendmsg(s, &m, MSG_ZEROCOPY);
}

// connect_to connects to a guest through eth0. It tries again, without a limit, if nobody listens or answers.
static inline int connect_to(const struct sockaddr_in *to)
{
	for (;;) {
		int s = socket(AF_INET, SOCK_STREAM, 0), one = 1;

		check(!setsockopt(s, SOL_SOCKET, SO_BINDTODEVICE, IFACE, sizeof IFACE), "SO_BINDTODEVICE"); // only eth0
		check(!setsockopt(s, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one), "SO_ZEROCOPY");
		if (!connect(s, (const struct sockaddr *)to, sizeof *to))
			return s;
		check(errno == ECONNREFUSED || errno == EHOSTUNREACH || errno == ETIMEDOUT, "connect");
		close(s);
		usleep(100000);
	}
}

// accept_one listens on an address, and returns the first connection.
static inline int accept_one(const struct sockaddr_in *me)
{
	int l = socket(AF_INET, SOCK_STREAM, 0), one = 1, c;

	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	check(!bind(l, (const struct sockaddr *)me, sizeof *me) && !listen(l, 1), "listen");
	c = accept(l, NULL, NULL);
	check(c >= 0, "accept");
	close(l);
	return c;
}

// recv_devmem calls a piece function for each received piece, of n bytes. If gpu is set, the piece is in GPU memory, at
// offset in the dma-buf. If not, it is in host memory, at host.
typedef void piece(void *arg, int gpu, uint64_t offset, const uint8_t *host, uint32_t n);

// recv_devmem receives pieces, and calls f for each. When f has returned, it gives a piece's GPU memory back to the
// kernel. It returns the number of received bytes, or 0 if the peer has ended its stream.
static inline ssize_t recv_devmem(int c, piece *f, void *arg)
{
	static char linear[256 << 10], control[64 << 10];
	struct iovec iov = { linear, sizeof linear };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	ssize_t n = recvmsg(c, &m, MSG_SOCK_DEVMEM);
	const uint8_t *next = (uint8_t *)linear;

	check(n >= 0, "recvmsg");
	if (n > 0 && !CMSG_FIRSTHDR(&m)) // the packets came through a queue without a binding
		f(arg, 0, 0, next, n);
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
		struct dmabuf_cmsg *d = (void *)CMSG_DATA(h);

		if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_DEVMEM_DMABUF) {
			struct dmabuf_token t = { d->frag_token, 1 };

			f(arg, 1, d->frag_offset, NULL, d->frag_size);
			check(setsockopt(c, SOL_SOCKET, SO_DEVMEM_DONTNEED, &t, sizeof t) == 1, "SO_DEVMEM_DONTNEED"); // 1 token
		} else if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_DEVMEM_LINEAR) {
			f(arg, 0, 0, next, d->frag_size);
			next += d->frag_size;
		}
	}
	return n;
}

#endif
