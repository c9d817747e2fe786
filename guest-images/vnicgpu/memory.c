// SPDX-License-Identifier: GPL-2.0
#include <linux/genalloc.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "internal.h"

struct piece {
	struct list_head list;
	u64 offset, size;
};

static void clear(void *mem, u64 size)
{
	while (size) {
		size_t n = min_t(u64, size, SZ_1M);

		memset(mem, 0, n);
		mem += n;
		size -= n;
		cond_resched();
	}
}

int vnicgpu_alloc(struct vnicgpu_file *f, struct vnicgpu_alloc *arg)
{
	struct vnicgpu *gpu = f->gpu;
	u64 align = arg->align ?: PAGE_SIZE;
	/* An aligned address is an aligned offset: the BAR's address is a multiple of its size. */
	struct genpool_data_align data = { .align = align };
	struct piece *p;
	unsigned long addr;

	if (!arg->size || !PAGE_ALIGNED(arg->size) || !is_power_of_2(align) || align < PAGE_SIZE || align > INT_MAX)
		return -EINVAL;
	if (arg->size > gpu->size)
		return -ENOMEM;
	p = kzalloc(sizeof(*p), GFP_KERNEL_ACCOUNT);
	if (!p)
		return -ENOMEM;
	addr = gen_pool_alloc_algo(gpu->pool, arg->size, gen_pool_first_fit_align, &data);
	if (!addr) {
		kfree(p);
		return -ENOMEM;
	}
	p->offset = addr - gpu->start;
	p->size = arg->size;
	vnicgpu_poison_taken(gpu, p->offset, p->size);
	clear(gpu->mem + p->offset, p->size);
	arg->offset = p->offset;
	guard(mutex)(&f->lock);
	list_add_tail(&p->list, &f->pieces);
	return 0;
}

int vnicgpu_owns(struct vnicgpu_file *f, u64 offset, u64 size)
{
	struct piece *p;

	if (!size || !PAGE_ALIGNED(offset) || !PAGE_ALIGNED(size))
		return -EINVAL;
	guard(mutex)(&f->lock);
	list_for_each_entry(p, &f->pieces, list)
		if (offset >= p->offset && offset - p->offset <= p->size && size <= p->size - (offset - p->offset))
			return 0;
	return -EACCES;
}

void vnicgpu_free_pieces(struct vnicgpu_file *f)
{
	struct piece *p, *next;

	list_for_each_entry_safe(p, next, &f->pieces, list) {
		gen_pool_free(f->gpu->pool, f->gpu->start + p->offset, p->size);
		kfree(p);
	}
}
