/*
 * xsk opens an AF_XDP socket on a queue of a NIC, in zero-copy mode, receives, and closes the socket while packets
 * arrive; it does this ROUNDS times. In another guest, xsk flood sends these packets:
 *
 *	xsk INTERFACE QUEUE ROUNDS	(receives for 30 ms in each round)
 *	xsk flood ADDRESS SECONDS	sends UDP from changing ports
 *
 * It needs root, except for flood. On a gVNIC that another guest floods, it crashes Linux 7.2.12 within minutes
 * (docs/found.md, "a zero-copy socket that is closed under traffic"). Linux's Documentation/networking/af_xdp.rst
 * describes AF_XDP.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { FRAMES = 2048, FRAME = 4096, ROUND_MS = 30, BIND_TRIES = 50, BIND_WAIT_US = 2000, REPORT = 25 };

static int check(long result, const char *what)
{
	if (result < 0) {
		perror(what);
		exit(1);
	}
	return (int)result;
}

static long bpf(int command, union bpf_attr *attr) { return syscall(__NR_bpf, command, attr, sizeof *attr); }

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* redirect attaches to the interface an XDP program that redirects a queue's packets to the queue's socket, and passes
 * them on if the queue has none. It returns the descriptor of the map of sockets by queue. */
static int redirect(int interface)
{
	union bpf_attr map = { .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 64 };
	int sockets = check(bpf(BPF_MAP_CREATE, &map), "create XSKMAP");
	/* return bpf_redirect_map(sockets, ctx->rx_queue_index, XDP_PASS) */
	struct bpf_insn code[] = {
		{ .code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 2, .src_reg = 1,
		  .off = offsetof(struct xdp_md, rx_queue_index) },
		{ .code = BPF_LD | BPF_IMM | BPF_DW, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = sockets },
		{ 0 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = XDP_PASS },
		{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	union bpf_attr program = { .prog_type = BPF_PROG_TYPE_XDP, .insns = (uintptr_t)code,
				   .insn_cnt = sizeof code / sizeof *code, .license = (uintptr_t)"GPL" };
	union bpf_attr link = { 0 };

	link.link_create.prog_fd = (uint32_t)check(bpf(BPF_PROG_LOAD, &program), "load the XDP program");
	link.link_create.target_ifindex = (uint32_t)interface;
	link.link_create.attach_type = BPF_XDP;
	link.link_create.flags = XDP_FLAGS_DRV_MODE;
	check(bpf(BPF_LINK_CREATE, &link), "attach it natively (docs/lab-reference.md has three commands that come before)");
	return sockets;
}

struct ring {
	uint32_t *producer, *consumer;
	void *entries;
	char *memory;
	size_t length;
};

static struct ring map_ring(int s, const struct xdp_ring_offset *at, size_t entry, off_t which)
{
	struct ring r = { .length = at->desc + FRAMES * entry };

	r.memory = mmap(NULL, r.length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, s, which);
	check(r.memory == MAP_FAILED ? -1 : 0, "map a ring");
	r.producer = (uint32_t *)(r.memory + at->producer);
	r.consumer = (uint32_t *)(r.memory + at->consumer);
	r.entries = r.memory + at->desc;
	return r;
}

/* round_of receives for ROUND_MS on a new socket, and returns how many packets came; -1: the socket was not bound. */
static long round_of(int interface, uint32_t queue, int sockets)
{
	size_t length = (size_t)FRAMES * FRAME;
	void *area = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int s = check(socket(AF_XDP, SOCK_RAW, 0), "AF_XDP"), entries = FRAMES;
	struct xdp_umem_reg umem = { .addr = (uintptr_t)area, .len = length, .chunk_size = FRAME };
	struct xdp_mmap_offsets at;
	socklen_t size = sizeof at;

	check(setsockopt(s, SOL_XDP, XDP_UMEM_REG, &umem, sizeof umem), "XDP_UMEM_REG");
	check(setsockopt(s, SOL_XDP, XDP_UMEM_FILL_RING, &entries, sizeof entries), "XDP_UMEM_FILL_RING");
	check(setsockopt(s, SOL_XDP, XDP_UMEM_COMPLETION_RING, &entries, sizeof entries), "XDP_UMEM_COMPLETION_RING");
	check(setsockopt(s, SOL_XDP, XDP_RX_RING, &entries, sizeof entries), "XDP_RX_RING");
	check(getsockopt(s, SOL_XDP, XDP_MMAP_OFFSETS, &at, &size), "XDP_MMAP_OFFSETS");
	struct ring fill = map_ring(s, &at.fr, sizeof(uint64_t), XDP_UMEM_PGOFF_FILL_RING);
	struct ring rx = map_ring(s, &at.rx, sizeof(struct xdp_desc), XDP_PGOFF_RX_RING);
	uint64_t *free_frames = fill.entries;
	const struct xdp_desc *received = rx.entries;

	for (uint32_t i = 0; i < FRAMES; i++)
		free_frames[i] = (uint64_t)i * FRAME;
	__atomic_store_n(fill.producer, FRAMES, __ATOMIC_RELEASE);

	struct sockaddr_xdp address = { .sxdp_family = AF_XDP, .sxdp_flags = XDP_ZEROCOPY | XDP_USE_NEED_WAKEUP,
					.sxdp_ifindex = (uint32_t)interface, .sxdp_queue_id = queue };
	int bound = -1;
	for (int i = 0; i < BIND_TRIES && bound < 0; i++) { /* the previous socket may not be released yet */
		bound = bind(s, (struct sockaddr *)&address, sizeof address);
		if (bound < 0)
			usleep(BIND_WAIT_US);
	}
	long packets = bound < 0 ? -1 : 0;
	if (bound < 0)
		perror("bind, zero-copy");
	union bpf_attr entry = { .map_fd = (uint32_t)sockets, .key = (uintptr_t)&queue, .value = (uintptr_t)&s };
	if (bound == 0)
		check(bpf(BPF_MAP_UPDATE_ELEM, &entry), "name the socket in the XSKMAP");
	uint32_t consumer = 0, producer = FRAMES;
	for (double end = now() + ROUND_MS / 1e3; bound == 0 && now() < end;) {
		struct pollfd wait = { .fd = s, .events = POLLIN };

		poll(&wait, 1, 1);
		uint32_t last = __atomic_load_n(rx.producer, __ATOMIC_ACQUIRE);
		for (; consumer != last; consumer++, producer++, packets++)
			free_frames[producer % FRAMES] = received[consumer % FRAMES].addr & ~(uint64_t)(FRAME - 1);
		__atomic_store_n(rx.consumer, consumer, __ATOMIC_RELEASE);
		__atomic_store_n(fill.producer, producer, __ATOMIC_RELEASE);
	}
	close(s); /* while the queue still receives packets, if a flood runs */
	munmap(fill.memory, fill.length);
	munmap(rx.memory, rx.length);
	munmap(area, length);
	return packets;
}

/* flood sends datagrams from changing ports, so that RSS spreads them over the queues. */
static int flood(const char *to, double seconds)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(9) };
	char payload[64] = { 0 };

	check(inet_pton(AF_INET, to, &address.sin_addr) == 1 ? 0 : -1, to);
	for (double end = now() + seconds; now() < end;) {
		int s = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");

		for (int i = 0; i < 32; i++)
			sendto(s, payload, sizeof payload, 0, (struct sockaddr *)&address, sizeof address);
		close(s);
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: xsk INTERFACE QUEUE ROUNDS, or xsk flood ADDRESS SECONDS\n");
		return 2;
	}
	if (!strcmp(argv[1], "flood"))
		return flood(argv[2], atof(argv[3]));
	int interface = (int)if_nametoindex(argv[1]), rounds = atoi(argv[3]);
	check(interface ? 0 : -1, argv[1]);
	int sockets = redirect(interface);
	long packets = 0, unbound = 0, silent = 0;

	for (int i = 1; i <= rounds; i++) {
		long n = round_of(interface, (uint32_t)atoi(argv[2]), sockets);

		unbound += n < 0;
		silent += n == 0;
		packets += n > 0 ? n : 0;
		if (i % REPORT == 0 || i == rounds) {
			printf("round %d: %ld packets, %ld rounds without one, %ld not bound\n", i, packets, silent,
			       unbound);
			fflush(stdout);
		}
	}
	return 0;
}
