// SPDX-License-Identifier: GPL-2.0
/*
 * Detects writes to pages of programs (private.c) in the GPU after the pages were freed. After the
 * first VNICGPU_POISON call, such a page is filled with one byte when it is freed, for example after
 * it moved to RAM. It is checked when it is allocated again, and at further VNICGPU_POISON calls.
 */
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/string.h>

#include "internal.h"

#define POISON 0xdb

/* Checks a page if it is filled. taken: the page is no longer free. Call it under poison_lock. */
static void look(struct vnicgpu *gpu, unsigned long page, bool taken)
{
	void *p = gpu->mem + ((u64)page << PAGE_SHIFT);

	if (!test_bit(page, gpu->poisoned))
		return;
	if (memchr_inv(p, POISON, PAGE_SIZE)) {
		gpu->broken++;
		memset(p, POISON, PAGE_SIZE);
	}
	if (taken)
		clear_bit(page, gpu->poisoned);
}

void vnicgpu_poison_left(struct vnicgpu *gpu, u64 offset)
{
	if (!smp_load_acquire(&gpu->poisoned))
		return;
	guard(spinlock_irqsave)(&gpu->poison_lock);
	memset(gpu->mem + offset, POISON, PAGE_SIZE);
	set_bit(offset >> PAGE_SHIFT, gpu->poisoned);
	gpu->left++;
}

void vnicgpu_poison_taken(struct vnicgpu *gpu, u64 offset, u64 size)
{
	unsigned long page = offset >> PAGE_SHIFT, end = (offset + size) >> PAGE_SHIFT;

	if (!smp_load_acquire(&gpu->poisoned))
		return;
	for (; page < end; page++)
		scoped_guard(spinlock_irqsave, &gpu->poison_lock)
			look(gpu, page, true);
}

int vnicgpu_poison(struct vnicgpu *gpu, struct vnicgpu_poison *arg)
{
	unsigned long page, pages = gpu->size >> PAGE_SHIFT;
	unsigned long *map;

	if (!smp_load_acquire(&gpu->poisoned)) {
		map = kvcalloc(BITS_TO_LONGS(pages), sizeof(long), GFP_KERNEL_ACCOUNT);
		if (!map)
			return -ENOMEM;
		if (cmpxchg(&gpu->poisoned, NULL, map))
			kvfree(map);
	}
	arg->held = 0;
	for_each_set_bit(page, gpu->poisoned, pages) {
		if (READ_ONCE(gpu->gone))
			return -ENODEV;
		scoped_guard(spinlock_irqsave, &gpu->poison_lock) {
			look(gpu, page, false);
			arg->held += test_bit(page, gpu->poisoned);
		}
		cond_resched();
	}
	guard(spinlock_irqsave)(&gpu->poison_lock);
	arg->left = gpu->left;
	arg->broken = gpu->broken;
	return 0;
}
