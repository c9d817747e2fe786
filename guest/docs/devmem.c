// devmem sends GPU memory of one guest to another guest's GPU memory, or with the argument host to its host memory. It
// uses Linux's own API for device memory TCP (devmem.h):
//
//     cc -O2 -Wall -o devmem devmem.c
//     vnic boot --nic gve --guests 2 -- ./devmem          guest0 receives, guest1 sends
//     vnic boot --nic gve --guests 2 -- ./devmem host     the same bytes through host memory, to compare counters
#include "devmem.h"

#define PORT "5201"
#define TOTAL (24u << 20)  // bytes to send
#define BUFFER (16u << 20) // GPU memory for received data; its pages are used again and again

// pattern returns the byte at an offset of the stream. The sequence of bytes has no period within the stream.
static uint8_t pattern(uint64_t at) { return (at + 1) * 0x9E3779B97F4A7C15ull >> 56; }

// received has the number of all received bytes, of bytes that arrived in host memory, and of bytes with a wrong value.
// gpu is the mapping of the dma-buf for received data; with the argument host, there is none (dmabuf is -1).
struct received {
	uint64_t bytes, host, wrong;
	int dmabuf;
	const uint8_t *gpu;
};

// look compares a received piece with the pattern, and counts its bytes in arg, a struct received.
static void look(void *arg, int gpu, uint64_t offset, const uint8_t *host, uint32_t n)
{
	struct received *got = arg;
	const uint8_t *b = gpu ? got->gpu + offset : host;

	if (gpu)
		cpu_access(got->dmabuf, DMA_BUF_SYNC_START | DMA_BUF_SYNC_READ);
	for (uint32_t i = 0; i < n; i++)
		got->wrong += b[i] != pattern(got->bytes + i);
	got->bytes += n;
	got->host += gpu ? 0 : n;
	if (gpu)
		cpu_access(got->dmabuf, DMA_BUF_SYNC_END | DMA_BUF_SYNC_READ);
}

static int receive(int host)
{
	struct sockaddr_in me = address("guest0", PORT);
	struct received got = { .dmabuf = -1 };
	int c;

	if (!host) {
		int queue = steer(&me);
		uint8_t *gpu;

		got.dmabuf = gpu_memory(BUFFER, &gpu);
		got.gpu = gpu;
		bind_memory(got.dmabuf, queue);
	}
	c = accept_one(&me);
	while (recv_devmem(c, look, &got) > 0)
		;
	printf("received %llu bytes, %llu not in GPU memory, %llu wrong\n", (unsigned long long)got.bytes,
	       (unsigned long long)got.host, (unsigned long long)got.wrong);
	return got.bytes != TOTAL || got.wrong || (got.host && !host);
}

static int transmit(int host)
{
	struct sockaddr_in to = address("guest0", PORT);
	uint32_t id = 0, calls = 0, done = 0;
	uint8_t *gpu, end;
	int dmabuf = gpu_memory(TOTAL, &gpu), s;

	cpu_access(dmabuf, DMA_BUF_SYNC_START | DMA_BUF_SYNC_WRITE);
	for (uint64_t i = 0; i < TOTAL; i++)
		gpu[i] = pattern(i);
	cpu_access(dmabuf, DMA_BUF_SYNC_END | DMA_BUF_SYNC_WRITE);
	if (!host)
		id = bind_memory(dmabuf, -1);
	s = connect_to(&to);
	for (uint64_t at = 0; at < TOTAL;) {
		ssize_t n = host ? send(s, gpu + at, TOTAL - at, 0) : send_devmem(s, id, at, TOTAL - at);

		check(n > 0, "send");
		at += n;
		calls += !host;
		if (calls > 8)
			completed(s, &done, calls - 8);
	}
	completed(s, &done, calls);
	shutdown(s, SHUT_WR);
	check(read(s, &end, 1) == 0, "the peer's end");
	printf("sent %u bytes\n", TOTAL);
	return 0;
}

int main(int argc, char **argv)
{
	const char *index = getenv("VNIC_INDEX");
	int host = argc > 1 && !strcmp(argv[1], "host");

	return index && !strcmp(index, "0") ? receive(host) : transmit(host);
}
