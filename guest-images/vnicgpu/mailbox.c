// SPDX-License-Identifier: GPL-2.0
/*
 * The mailbox is a page of the GPU's memory in which the driver writes notes to the NIC
 * (README.md). vnicgpu_tell neither allocates memory nor takes a page fault: its caller may be
 * reclaiming memory.
 */
#include <linux/delay.h>
#include <linux/genalloc.h>
#include <linux/ktime.h>
#include <linux/moduleparam.h>

#include "internal.h"

#define MAGIC	0x424d4756 /* VGMB */
#define VERSION	1
#define SLOTS	VNICGPU_SLOTS

/* Bounds of the sleep between two looks for a free slot or for an answer, in microseconds. */
#define LOOK_MIN 20
#define LOOK_MAX 100

static int ack_set(const char *val, const struct kernel_param *kp)
{
	return param_set_uint_minmax(val, kp, 1, 10000);
}

static const struct kernel_param_ops ack_ops = {
	.set = ack_set,
	.get = param_get_uint,
};

static unsigned int ack_ms = 1000;
module_param_cb(ack_ms, &ack_ops, &ack_ms, 0644);
MODULE_PARM_DESC(ack_ms, "how long a NIC may take to let go of pages, in ms (1 to 10000); of GPUs not used so far");

enum { FREE, ASKED, DONE, GIVEN_UP };

struct slot {
	__le32 state, region;
	__le64 first, pages;
	__le32 generation, reason;
	__le64 tag;
	u8 zero[24];
};

struct mailbox {
	__le32 magic, version, slots, ack_ms;
	__le32 lost;
	u8 zero[44];
	struct slot slot[SLOTS];
};
static_assert(sizeof(struct slot) == 64 && sizeof(struct mailbox) == VNICGPU_MAILBOX_SIZE);

/* The last note's tag, of all GPUs: the host may remember the tags of a GPU that was removed and added again. */
static atomic64_t tags;

static struct mailbox *mailbox_of(const struct vnicgpu *gpu)
{
	return gpu->mem + gpu->mailbox;
}

int vnicgpu_mailbox(struct vnicgpu *gpu)
{
	struct mailbox *m;
	unsigned long addr;

	guard(mutex)(&gpu->mailbox_lock);
	if (gpu->has_mailbox)
		return 0;
	addr = gen_pool_alloc(gpu->pool, VNICGPU_MAILBOX_SIZE);
	if (!addr)
		return -ENOMEM;
	gpu->mailbox = addr - gpu->start;
	vnicgpu_poison_taken(gpu, gpu->mailbox, VNICGPU_MAILBOX_SIZE);
	gpu->ack_ms = READ_ONCE(ack_ms);
	m = mailbox_of(gpu);
	memset(m, 0, sizeof(*m));
	m->version = cpu_to_le32(VERSION);
	m->slots = cpu_to_le32(SLOTS);
	m->ack_ms = cpu_to_le32(gpu->ack_ms);
	wmb();
	WRITE_ONCE(m->magic, cpu_to_le32(MAGIC));
	gpu->has_mailbox = true;
	return 0;
}

void vnicgpu_mailbox_end(struct vnicgpu *gpu)
{
	if (!gpu->has_mailbox)
		return;
	WRITE_ONCE(mailbox_of(gpu)->magic, 0);
	wmb();
	gen_pool_free(gpu->pool, gpu->start + gpu->mailbox, VNICGPU_MAILBOX_SIZE);
	gpu->unanswered = NULL;
	gpu->has_mailbox = false;
}

/* Takes a slot in state FREE that no other vnicgpu_tell has taken, or returns NULL. */
static struct slot *take(struct vnicgpu *gpu)
{
	struct mailbox *m = mailbox_of(gpu);
	unsigned int i;

	guard(spinlock)(&gpu->slots_lock);
	for_each_clear_bit(i, gpu->slots, SLOTS) {
		if (READ_ONCE(m->slot[i].state) == cpu_to_le32(FREE)) {
			__set_bit(i, gpu->slots);
			return &m->slot[i];
		}
	}
	return NULL;
}

/*
 * Returns whether the last note that timed out is still unanswered. Further notes then fail at once;
 * otherwise reclaim would wait for the NIC once for each region.
 */
static bool nic_is_silent(struct vnicgpu *gpu)
{
	guard(spinlock)(&gpu->slots_lock);
	if (gpu->unanswered && READ_ONCE(*gpu->unanswered) != cpu_to_le32(GIVEN_UP))
		gpu->unanswered = NULL;
	return gpu->unanswered;
}

static void lost(struct vnicgpu *gpu)
{
	struct mailbox *m = mailbox_of(gpu);

	guard(spinlock)(&gpu->slots_lock);
	WRITE_ONCE(m->lost, cpu_to_le32(le32_to_cpu(m->lost) + 1));
}

int vnicgpu_tell(struct vnicgpu *gpu, const struct vnicgpu_note *note)
{
	ktime_t end = ktime_add_ms(ktime_get(), gpu->ack_ms);
	struct slot *s;
	bool late;
	int ret = 0;

	if (nic_is_silent(gpu)) {
		lost(gpu);
		return -ETIMEDOUT;
	}
	for (;;) {
		late = ktime_after(ktime_get(), end);
		s = take(gpu);
		if (s)
			break;
		if (late) {
			lost(gpu);
			return -ETIMEDOUT;
		}
		usleep_range(LOOK_MIN, LOOK_MAX);
	}
	s->region = cpu_to_le32(note->region);
	s->first = cpu_to_le64(note->first);
	s->pages = cpu_to_le64(note->pages);
	s->generation = cpu_to_le32(note->generation);
	s->reason = cpu_to_le32(note->reason);
	s->tag = cpu_to_le64(atomic64_inc_return(&tags));
	wmb(); /* the note before its state */
	WRITE_ONCE(s->state, cpu_to_le32(ASKED));
	wmb(); /* flushes write-combining buffers */
	for (;;) {
		late = ktime_after(ktime_get(), end);
		if (READ_ONCE(s->state) == cpu_to_le32(DONE))
			break;
		/* The host may set DONE at this moment. */
		if (late && cmpxchg(&s->state, cpu_to_le32(ASKED), cpu_to_le32(GIVEN_UP)) != cpu_to_le32(DONE)) {
			ret = -ETIMEDOUT;
			break;
		}
		usleep_range(LOOK_MIN, LOOK_MAX);
	}
	rmb();
	if (!ret)
		WRITE_ONCE(s->state, cpu_to_le32(FREE));
	guard(spinlock)(&gpu->slots_lock);
	if (ret)
		gpu->unanswered = &s->state;
	__clear_bit(s - mailbox_of(gpu)->slot, gpu->slots);
	return ret;
}
