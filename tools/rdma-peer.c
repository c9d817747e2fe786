// rdma-peer carries out the requests of a test by libibverbs on rxe, Linux's RoCE in software.
//
//   rdma-peer [-n NETDEV] [-d DEVICE]            requests come on stdin, answers go to stdout
//   rdma-peer [-n NETDEV] [-d DEVICE] -l PORT    ... or both on the first TCP connection to PORT; when it listens, it
//                                                prints "listening" on stdout
//
// At its start it makes the rxe device (by default rxe0 on eth0) if there is none. A request is a line, and so is its
// answer: the one in the second column, or "error WHAT: ERRNO TEXT". Numbers are as in C, such as 10, 0xa or 012. Q and
// M number queue pairs and memory regions, 0 to 63. SEED selects a stream of bytes, AT a place in it (gpumem.FillAt).
//
//   hello                                  hello VERSION KERNEL DEVICE MAC MTU    MTU: the port's active one, bytes
//   gid FAMILY                             gid GID                                FAMILY: 4 or 6; waits up to 5 s
//   qp Q FAMILY PSN                        qp QPN PSN GID                         makes Q, in INIT; destroys an old Q
//   connect Q QPN PSN GID MTU TIMEOUT RETRY RNR_RETRY RNR_TIMER    ok             to RTR and RTS; Linux resolves GID
//   state Q                                state STATE RQ_PSN SQ_PSN
//   fail Q | drop Q                        ok                                     fail: to ERROR; drop: destroys Q
//   mr M SIZE ACCESS                       mr LKEY RKEY VA                        ACCESS: of lwra, or -; replaces M
//   dereg M                                ok
//   fill M OFF LEN SEED AT                 ok
//   check M OFF LEN SEED AT                check WRONG FIRST                      WRONG: bytes; FIRST: from OFF, or -1
//   poison M OFF LEN BYTE | flip M OFF     ok                                     flip: bit 0 of the byte
//   same M OFF LEN BYTE                    check WRONG FIRST
//   sum M OFF LEN                          sum CRC                                CRC-32 (IEEE)
//   recv Q ID M OFF LEN                    ok
//   post Q ID OP M OFF LEN VA RKEY IMM     ok                                     OP: write, write_imm, read, send or
//                                                                                 send_imm
//   poll Q MS                              wc ID STATUS OPCODE LEN IMM TEXT       IMM: -1 if none; or: none
//   async MS                               async TYPE QPN TEXT                    QPN: -1 if none; or: none
//   counters                               counters NAME=VALUE ...                of the device's port
//   quit                                   ok
//
// If STATUS is not 0, OPCODE and IMM are -1, and LEN is 0. rdma-peer does not check whether OFF and LEN of recv and
// post are within the region.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_netlink.h>

#define VERSION 1
#define MANY 64
#define DEPTH 256            // most requests in the send queue or receive queue of a queue pair
#define LONGEST 60000        // ms that poll and async wait at most
#define GID_WAIT 5000        // ms to wait for a GID, which a work queue of the kernel adds
#define ACCEPT 600000        // ms to wait for the TCP connection
#define LARGEST (1UL << 32)  // most bytes of a region

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static const char *netdev = "eth0", *device = "rxe0";
static FILE *out;

static struct queue {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	int gid; // index of its GID
	uint32_t psn;
} queues[MANY];

static struct region {
	unsigned char *mem;
	size_t size;
	struct ibv_mr *mr; // NULL: not registered
} regions[MANY];

// A request's words, their number, and whether num has read a word that is no number.
static char *words[16];
static int nwords, bad;

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vfprintf(out, format, list);
	va_end(list);
	fputc('\n', out);
	fflush(out);
}

// fault answers with an error, the errno e.
static void fault(const char *what, int e)
{
	say("error %s: %d %s", what, e, strerror(e));
}

// done answers "ok" if e is 0, else with an error.
static void done(const char *what, int e)
{
	if (e)
		fault(what, e);
	else
		say("ok");
}

static uint64_t num(int i)
{
	char *end = "?";
	uint64_t n = 0;

	errno = 0;
	if (i < nwords && words[i][0] != '-')
		n = strtoull(words[i], &end, 0);
	if (*end || errno)
		bad = 1;
	return n;
}

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static void put(struct nlmsghdr *h, int type, const char *s)
{
	struct nlattr *a = (struct nlattr *)((char *)h + NLMSG_ALIGN(h->nlmsg_len));

	a->nla_type = type;
	a->nla_len = NLA_HDRLEN + strlen(s) + 1;
	strcpy((char *)a + NLA_HDRLEN, s);
	h->nlmsg_len = NLMSG_ALIGN(h->nlmsg_len) + NLA_ALIGN(a->nla_len);
}

// make_device does what `rdma link add DEVICE type rxe netdev NETDEV` does. It returns 0 or an errno; 0 for
// EEXIST, too.
static int make_device(void)
{
	union {
		struct nlmsghdr h;
		char bytes[1024];
	} m = { .h = { .nlmsg_len = NLMSG_HDRLEN, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK,
		       .nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK) } };
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	struct timeval limit = { .tv_sec = 10 };
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA), e = 0;
	ssize_t n;

	if (fd < 0)
		return errno;
	put(&m.h, RDMA_NLDEV_ATTR_DEV_NAME, device);
	put(&m.h, RDMA_NLDEV_ATTR_LINK_TYPE, "rxe");
	put(&m.h, RDMA_NLDEV_ATTR_NDEV_NAME, netdev);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	n = sendto(fd, &m, m.h.nlmsg_len, 0, (struct sockaddr *)&kernel, sizeof(kernel));
	if (n >= 0)
		n = recv(fd, &m, sizeof(m), 0);
	if (n < 0)
		e = errno;
	else if (m.h.nlmsg_type != NLMSG_ERROR || n < (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr)))
		e = EBADMSG;
	else
		e = -((struct nlmsgerr *)NLMSG_DATA(&m.h))->error;
	close(fd);
	return e == EEXIST ? 0 : e;
}

static void open_device(void)
{
	struct ibv_device **list;
	int n = 0, e = make_device();

	if (e) {
		fprintf(stderr, "rdma-peer: no %s on %s: %s\n", device, netdev, strerror(e));
		exit(1);
	}
	list = ibv_get_device_list(&n);
	for (int i = 0; list && i < n && !ctx; i++)
		if (!strcmp(ibv_get_device_name(list[i]), device))
			ctx = ibv_open_device(list[i]);
	if (!ctx || !(pd = ibv_alloc_pd(ctx))) {
		fprintf(stderr, "rdma-peer: %d devices, and %s cannot be opened: %s\n", n, device, strerror(errno));
		exit(1);
	}
	ibv_free_device_list(list);
}

// find_gid waits up to GID_WAIT for a GID of a family, for IPv6 not a link-local one, stores it in g, and returns its
// index; -1: there is none, or ibv_query_port failed.
static int find_gid(int family, union ibv_gid *g)
{
	static const unsigned char mapped[12] = { [10] = 0xff, 0xff };
	struct ibv_port_attr port;
	int64_t end = now() + GID_WAIT;

	do {
		if (ibv_query_port(ctx, 1, &port))
			return -1;
		for (int i = 0; i < port.gid_tbl_len; i++) {
			if (ibv_query_gid(ctx, 1, i, g) || (!g->global.subnet_prefix && !g->global.interface_id))
				continue;
			if (!memcmp(g->raw, mapped, sizeof(mapped)) ? family == 4 :
			    (g->raw[0] != 0xfe && family == 6))
				return i;
		}
	} while (now() < end && !usleep(20000));
	return -1;
}

static const char *hex(const union ibv_gid *g)
{
	static char text[33];

	for (int i = 0; i < 16; i++)
		sprintf(text + 2 * i, "%02x", g->raw[i]);
	return text;
}

static int unhex(const char *text, union ibv_gid *g)
{
	if (strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
		return EINVAL;
	for (int i = 0; i < 16; i++)
		sscanf(text + 2 * i, "%2hhx", &g->raw[i]);
	return 0;
}

// read_line reads the first line of a file, without its newline, into the n bytes at b, and returns b: "" if it cannot.
static char *read_line(const char *path, char *b, size_t n)
{
	FILE *f = fopen(path, "re");

	*b = 0;
	if (f) {
		if (!fgets(b, n, f))
			*b = 0;
		fclose(f);
	}
	b[strcspn(b, "\n")] = 0;
	return b;
}

static void hello(void)
{
	char path[300], mac[64];
	struct ibv_port_attr port;
	struct utsname u;
	int e = ibv_query_port(ctx, 1, &port);

	if (e || (e = uname(&u) ? errno : 0))
		return fault("ibv_query_port", e);
	snprintf(path, sizeof(path), "/sys/class/net/%s/address", netdev);
	say("hello %d %s %s %s %d", VERSION, u.release, device, read_line(path, mac, sizeof(mac)),
	    128 << port.active_mtu);
}

static void gid(void)
{
	union ibv_gid g;

	if (find_gid(num(1), &g) < 0)
		return fault("gid", ENOENT);
	say("gid %s", hex(&g));
}

static int drop_queue(struct queue *q)
{
	int e = 0;

	if (q->qp && (e = ibv_destroy_qp(q->qp)))
		return e;
	q->qp = NULL;
	if (q->cq && (e = ibv_destroy_cq(q->cq)))
		return e;
	q->cq = NULL;
	if (q->channel && (e = ibv_destroy_comp_channel(q->channel)))
		return e;
	q->channel = NULL;
	return 0;
}

static void qp(struct queue *q)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags =
		IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	union ibv_gid g;
	int e = drop_queue(q);

	if (e)
		return fault("ibv_destroy_qp", e);
	q->psn = num(3) & 0xffffff;
	if ((q->gid = find_gid(num(2), &g)) < 0)
		return fault("gid", ENOENT);
	if (!(q->channel = ibv_create_comp_channel(ctx)))
		return fault("ibv_create_comp_channel", errno);
	fcntl(q->channel->fd, F_SETFL, O_NONBLOCK);
	if (!(q->cq = ibv_create_cq(ctx, 2 * DEPTH, NULL, q->channel, 0)))
		return fault("ibv_create_cq", errno);
	init.send_cq = init.recv_cq = q->cq;
	if (!(q->qp = ibv_create_qp(pd, &init)))
		return fault("ibv_create_qp", errno);
	e = ibv_modify_qp(q->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (e)
		return fault("to INIT", e);
	say("qp %u %u %s", q->qp->qp_num, q->psn, hex(&g));
}

// mtu_of returns the enum ibv_mtu of a number of bytes; 0: there is none.
static int mtu_of(uint64_t bytes)
{
	for (int m = IBV_MTU_256; m <= IBV_MTU_4096; m++)
		if (bytes == 128UL << m)
			return m;
	return 0;
}

static void join(struct queue *q)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .dest_qp_num = num(2), .rq_psn = num(3),
		.path_mtu = mtu_of(num(5)), .max_dest_rd_atomic = 16, .min_rnr_timer = num(9), .ah_attr = {
			.is_global = 1, .port_num = 1, .grh = { .sgid_index = q->gid, .hop_limit = 64 } } };
	struct ibv_qp_attr b = { .qp_state = IBV_QPS_RTS, .sq_psn = q->psn, .timeout = num(6), .retry_cnt = num(7),
		.rnr_retry = num(8), .max_rd_atomic = 16 };
	int e;

	if (bad || !a.path_mtu || unhex(words[4], &a.ah_attr.grh.dgid))
		return fault("connect", EINVAL);
	e = ibv_modify_qp(q->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (e)
		return fault("to RTR", e);
	done("to RTS", ibv_modify_qp(q->qp, &b, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void state(struct queue *q)
{
	static const char *const names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERROR" };
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;
	int e = ibv_query_qp(q->qp, &a, IBV_QP_STATE | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN, &init);

	if (e)
		return fault("ibv_query_qp", e);
	say("state %s %u %u", (unsigned)a.qp_state < 7 ? names[a.qp_state] : "?", a.rq_psn, a.sq_psn);
}

static void fail(struct queue *q)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };

	done("to ERROR", ibv_modify_qp(q->qp, &a, IBV_QP_STATE));
}

static void mr(struct region *r)
{
	int access = 0, e = r->mr ? ibv_dereg_mr(r->mr) : 0;
	size_t size = num(2);

	if (e)
		return fault("ibv_dereg_mr", e);
	r->mr = NULL;
	if (r->mem)
		munmap(r->mem, r->size);
	r->mem = NULL;
	if (!size || size > LARGEST)
		return fault("size", EINVAL);
	for (const char *c = words[3]; *c; c++)
		access |= *c == 'l' ? IBV_ACCESS_LOCAL_WRITE : *c == 'w' ? IBV_ACCESS_REMOTE_WRITE :
			  *c == 'r' ? IBV_ACCESS_REMOTE_READ : *c == 'a' ? IBV_ACCESS_REMOTE_ATOMIC : 0;
	r->mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (r->mem == MAP_FAILED) {
		r->mem = NULL;
		return fault("mmap", errno);
	}
	r->size = size;
	if (!(r->mr = ibv_reg_mr(pd, r->mem, size, access)))
		return fault("ibv_reg_mr", errno);
	say("mr %u %u %" PRIu64, r->mr->lkey, r->mr->rkey, (uint64_t)(uintptr_t)r->mem);
}

static void dereg(struct region *r)
{
	int e = r->mr ? ibv_dereg_mr(r->mr) : EINVAL;

	if (!e)
		r->mr = NULL;
	done("ibv_dereg_mr", e);
}

// pattern returns byte i of a seed's stream: the outputs of splitmix64, whose first state is the seed, as 8-byte words
// in little endian (gpumem/pattern.go).
static unsigned char pattern(uint64_t seed, uint64_t i)
{
	static uint64_t of, at = -1, word;

	if (of != seed || at != i / 8) {
		of = seed;
		at = i / 8;
		word = seed + (at + 1) * 0x9E3779B97F4A7C15;
		word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9;
		word = (word ^ word >> 27) * 0x94D049BB133111EB;
		word ^= word >> 31;
	}
	return word >> 8 * (i % 8);
}

// part returns the part of a region at the offset in word 2, and stores its length, word 3, in len. If it is not within
// the region, part answers with an error and returns NULL.
static unsigned char *part(struct region *r, size_t *len)
{
	size_t off = num(2);

	*len = num(3);
	if (bad || !r->mem || off > r->size || *len > r->size - off) {
		fault("place in the region", EINVAL);
		return NULL;
	}
	return r->mem + off;
}

static void fill(struct region *r)
{
	uint64_t seed = num(4), at = num(5);
	size_t n;
	unsigned char *p = part(r, &n);

	if (!p)
		return;
	for (size_t i = 0; i < n; i++)
		p[i] = pattern(seed, at + i);
	say("ok");
}

static void check(struct region *r, int constant)
{
	uint64_t seed = num(4), at = constant ? 0 : num(5);
	size_t n, wrong = 0;
	int64_t first = -1;
	unsigned char *p = part(r, &n);

	if (!p)
		return;
	for (size_t i = 0; i < n; i++)
		if (p[i] != (constant ? (unsigned char)seed : pattern(seed, at + i))) {
			if (!wrong++)
				first = i;
		}
	say("check %zu %" PRId64, wrong, first);
}

static void poison(struct region *r)
{
	int byte = num(4);
	size_t n;
	unsigned char *p = part(r, &n);

	if (!p)
		return;
	memset(p, byte, n);
	say("ok");
}

static void flip(struct region *r)
{
	size_t off = num(2);

	if (bad || !r->mem || off >= r->size)
		return fault("place in the region", EINVAL);
	r->mem[off] ^= 1;
	say("ok");
}

static void sum(struct region *r)
{
	static uint32_t table[256];
	uint32_t crc = -1;
	size_t n;
	unsigned char *p = part(r, &n);

	if (!p)
		return;
	for (uint32_t i = 0; !table[255] && i < 256; i++) {
		table[i] = i;
		for (int k = 0; k < 8; k++)
			table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xEDB88320 : 0);
	}
	for (size_t i = 0; i < n; i++)
		crc = crc >> 8 ^ table[(crc ^ p[i]) & 0xff];
	say("sum %u", ~crc);
}

// piece stores in s the scatter/gather element of words i to i+2: region, offset, length. It returns 0 or EINVAL.
static int piece(int i, struct ibv_sge *s)
{
	uint64_t m = num(i), off = num(i + 1), len = num(i + 2);

	if (bad || m >= MANY || !regions[m].mr || len > UINT32_MAX)
		return EINVAL;
	*s = (struct ibv_sge){ .addr = (uintptr_t)regions[m].mem + off, .length = len, .lkey = regions[m].mr->lkey };
	return 0;
}

static void receive(struct queue *q)
{
	struct ibv_sge s;
	struct ibv_recv_wr w = { .wr_id = num(2), .sg_list = &s, .num_sge = 1 }, *which;

	if (piece(3, &s))
		return fault("recv", EINVAL);
	w.num_sge = s.length ? 1 : 0;
	done("ibv_post_recv", ibv_post_recv(q->qp, &w, &which));
}

static void post(struct queue *q)
{
	static const struct {
		const char *name;
		enum ibv_wr_opcode code;
	} ops[] = { { "write", IBV_WR_RDMA_WRITE }, { "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM },
		    { "read", IBV_WR_RDMA_READ }, { "send", IBV_WR_SEND }, { "send_imm", IBV_WR_SEND_WITH_IMM } };
	struct ibv_sge s;
	struct ibv_send_wr w = { .wr_id = num(2), .sg_list = &s, .send_flags = IBV_SEND_SIGNALED, .opcode = -1,
		.imm_data = htonl(num(9)), .wr.rdma = { .remote_addr = num(7), .rkey = num(8) } }, *which;

	for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++)
		if (!strcmp(words[3], ops[i].name))
			w.opcode = ops[i].code;
	if (piece(4, &s) || w.opcode == (enum ibv_wr_opcode)-1)
		return fault("post", EINVAL);
	w.num_sge = s.length ? 1 : 0;
	done("ibv_post_send", ibv_post_send(q->qp, &w, &which));
}

// wait_for waits until a file can be read, for ms at most, and returns whether it can be.
static int wait_for(int fd, int64_t ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, ms < 0 ? 0 : ms) > 0;
}

static int64_t limit(uint64_t ms)
{
	return now() + (int64_t)(ms < LONGEST ? ms : LONGEST);
}

static void completion(struct queue *q)
{
	int64_t end = limit(num(2));
	struct ibv_wc wc;
	struct ibv_cq *cq;
	void *arg;
	int n;

	// A completion that comes between ibv_poll_cq and ibv_req_notify_cq makes no event: the second ibv_poll_cq finds it.
	while (!(n = ibv_poll_cq(q->cq, 1, &wc))) {
		int e = ibv_req_notify_cq(q->cq, 0);

		if (e)
			return fault("ibv_req_notify_cq", e);
		if ((n = ibv_poll_cq(q->cq, 1, &wc)))
			break;
		if (!wait_for(q->channel->fd, end - now()))
			return say("none");
		if (!ibv_get_cq_event(q->channel, &cq, &arg))
			ibv_ack_cq_events(cq, 1);
	}
	if (n < 0)
		return fault("ibv_poll_cq", EIO);
	if (wc.status) // opcode, byte_len and imm_data are then undefined
		return say("wc %" PRIu64 " %d -1 0 -1 %s", wc.wr_id, wc.status, ibv_wc_status_str(wc.status));
	say("wc %" PRIu64 " 0 %d %u %" PRId64 " %s", wc.wr_id, wc.opcode, wc.byte_len,
	    wc.wc_flags & IBV_WC_WITH_IMM ? (int64_t)ntohl(wc.imm_data) : -1, ibv_wc_status_str(wc.status));
}

static void async(void)
{
	struct ibv_async_event e;
	int type, qpn = -1;

	if (!wait_for(ctx->async_fd, limit(num(1)) - now()))
		return say("none");
	if (ibv_get_async_event(ctx, &e))
		return fault("ibv_get_async_event", errno);
	type = e.event_type;
	if ((type >= IBV_EVENT_QP_FATAL && type <= IBV_EVENT_PATH_MIG_ERR) || type == IBV_EVENT_QP_LAST_WQE_REACHED)
		qpn = e.element.qp->qp_num;
	ibv_ack_async_event(&e);
	say("async %d %d %s", type, qpn, ibv_event_type_str(type));
}

static void counters(void)
{
	char path[300], value[64];
	struct dirent *d;
	DIR *dir;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/hw_counters", device);
	if (!(dir = opendir(path)))
		return fault(path, errno);
	fputs("counters", out);
	while ((d = readdir(dir))) {
		char file[600];

		if (d->d_name[0] == '.')
			continue;
		snprintf(file, sizeof(file), "%s/%s", path, d->d_name);
		fprintf(out, " %s=%s", d->d_name, read_line(file, value, sizeof(value)));
	}
	closedir(dir);
	say("%s", "");
}

static void with_queue(struct queue *q)
{
	if (!strcmp(words[0], "qp"))
		qp(q);
	else if (!strcmp(words[0], "drop"))
		done("ibv_destroy_qp", drop_queue(q));
	else if (!q->qp)
		fault("queue pair", ENOENT);
	else if (!strcmp(words[0], "connect"))
		join(q);
	else if (!strcmp(words[0], "state"))
		state(q);
	else if (!strcmp(words[0], "fail"))
		fail(q);
	else if (!strcmp(words[0], "recv"))
		receive(q);
	else if (!strcmp(words[0], "post"))
		post(q);
	else
		completion(q);
}

static void with_region(struct region *r)
{
	if (!strcmp(words[0], "mr"))
		mr(r);
	else if (!strcmp(words[0], "dereg"))
		dereg(r);
	else if (!strcmp(words[0], "fill"))
		fill(r);
	else if (!strcmp(words[0], "check"))
		check(r, 0);
	else if (!strcmp(words[0], "same"))
		check(r, 1);
	else if (!strcmp(words[0], "poison"))
		poison(r);
	else if (!strcmp(words[0], "flip"))
		flip(r);
	else
		sum(r);
}

static const struct {
	const char *name;
	int words; // with the name
	char of; // 'q': a queue pair; 'm': a memory region; 0: neither
} requests[] = {
	{ "hello", 1, 0 }, { "gid", 2, 0 }, { "async", 2, 0 }, { "counters", 1, 0 }, { "quit", 1, 0 },
	{ "qp", 4, 'q' }, { "connect", 10, 'q' }, { "state", 2, 'q' }, { "fail", 2, 'q' }, { "drop", 2, 'q' },
	{ "recv", 6, 'q' }, { "post", 10, 'q' }, { "poll", 3, 'q' },
	{ "mr", 4, 'm' }, { "dereg", 2, 'm' }, { "fill", 6, 'm' }, { "check", 6, 'm' }, { "same", 5, 'm' },
	{ "poison", 5, 'm' }, { "flip", 3, 'm' }, { "sum", 4, 'm' },
};

// obey carries out the request in a line and answers it. It returns 0 for a correct "quit", else 1.
static int obey(char *line)
{
	size_t r, n = sizeof(requests) / sizeof(*requests);
	char *save, *w;
	uint64_t which = 0;

	nwords = bad = 0;
	for (w = strtok_r(line, " \t\r\n", &save); w && nwords < 16; w = strtok_r(NULL, " \t\r\n", &save))
		words[nwords++] = w;
	for (r = 0; r < n && (!nwords || strcmp(requests[r].name, words[0])); r++)
		;
	if (r < n && requests[r].of)
		which = num(1);
	if (r == n)
		fault("no such request", ENOSYS);
	else if (nwords != requests[r].words || bad || which >= MANY)
		fault("words of the request", EINVAL);
	else if (requests[r].of == 'q')
		with_queue(&queues[which]);
	else if (requests[r].of == 'm')
		with_region(&regions[which]);
	else if (!strcmp(words[0], "hello"))
		hello();
	else if (!strcmp(words[0], "gid"))
		gid();
	else if (!strcmp(words[0], "async"))
		async();
	else if (!strcmp(words[0], "counters"))
		counters();
	else {
		say("ok");
		return 0;
	}
	return 1;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

// reach listens on a TCP port, and returns the first connection. If none comes within ACCEPT, it ends the program.
static int reach(int port)
{
	struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), conn;

	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 1))
		die("listen");
	say("listening");
	if (!wait_for(fd, ACCEPT)) {
		errno = ETIMEDOUT;
		die("accept");
	}
	if ((conn = accept4(fd, NULL, NULL, SOCK_CLOEXEC)) < 0)
		die("accept");
	close(fd);
	return conn;
}

int main(int argc, char **argv)
{
	static char line[4096];
	FILE *in = stdin;
	int c, fd, port = 0;

	out = stdout;
	while ((c = getopt(argc, argv, "n:d:l:")) != -1) {
		if (c == 'n')
			netdev = optarg;
		else if (c == 'd')
			device = optarg;
		else if (c == 'l')
			port = atoi(optarg);
		else
			return 2;
	}
	if (strlen(netdev) > 15 || strlen(device) > 63)
		return 2;
	open_device();
	if (port) {
		fd = reach(port);
		in = fdopen(fd, "r");
		out = fdopen(dup(fd), "w");
		if (!in || !out)
			die("fdopen");
	}
	// A line without an end, or one that is too long, ends the program.
	while (fgets(line, sizeof(line), in) && strchr(line, '\n') && obey(line))
		;
	return 0;
}
