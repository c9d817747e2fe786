// SPDX-License-Identifier: GPL-2.0
/* Pages of programs in the GPU's memory (Documentation/mm/hmm.rst), which move to RAM when a CPU accesses them. */
#include <linux/genalloc.h>
#include <linux/highmem.h>
#include <linux/hmm.h>
#include <linux/memremap.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "internal.h"

/* The most pages of one migration. */
#define BATCH 64

#define MAX_WHERE (1UL << 20)

static struct vnicgpu *gpu_of(const struct page *page)
{
	return container_of(page_pgmap(page), struct vnicgpu, pgmap);
}

static u64 offset_of(const struct vnicgpu *gpu, const struct page *page)
{
	return (u64)(page_to_pfn(page) - PHYS_PFN(gpu->pgmap.range.start)) << PAGE_SHIFT;
}

static bool is_ours(const struct vnicgpu *gpu, const struct page *page)
{
	return page && is_device_private_page(page) && page_pgmap(page) == &gpu->pgmap;
}

bool vnicgpu_private_at(const struct vnicgpu *gpu, const struct page *page, u64 *offset)
{
	if (!is_ours(gpu, page))
		return false;
	*offset = offset_of(gpu, page);
	return true;
}

static void private_free(struct folio *folio)
{
	struct vnicgpu *gpu = gpu_of(&folio->page);

	vnicgpu_poison_left(gpu, offset_of(gpu, &folio->page));
	gen_pool_free(gpu->pool, gpu->start + offset_of(gpu, &folio->page), PAGE_SIZE);
	atomic_long_dec(&gpu->private);
}

/* Returns a page in the GPU, locked and with undefined content, or NULL if no page is free. */
static struct page *private_alloc(struct vnicgpu *gpu)
{
	unsigned long addr = gen_pool_alloc(gpu->pool, PAGE_SIZE);
	struct page *page;

	if (!addr)
		return NULL;
	vnicgpu_poison_taken(gpu, addr - gpu->start, PAGE_SIZE);
	page = pfn_to_page(PHYS_PFN(gpu->pgmap.range.start + (addr - gpu->start)));
	atomic_long_inc(&gpu->private);
	vnicgpu_page_init(page, &gpu->pgmap);
	return page;
}

/*
 * Copies to new pages of RAM, in dst, the pages of src that are in the GPU and can be moved. dst is 0
 * for other pages, and where no RAM could be allocated. Returns the number of copies.
 */
static unsigned long copy_to_ram(struct vnicgpu *gpu, const unsigned long *src, unsigned long *dst, unsigned long n)
{
	unsigned long i, done = 0;

	for (i = 0; i < n; i++) {
		struct page *from = migrate_pfn_to_page(src[i]), *to;
		void *p;

		dst[i] = 0;
		if (!(src[i] & MIGRATE_PFN_MIGRATE) || !is_ours(gpu, from))
			continue;
		to = alloc_page(GFP_HIGHUSER_MOVABLE);
		if (!to)
			continue;
		p = kmap_local_page(to);
		memcpy(p, gpu->mem + offset_of(gpu, from), PAGE_SIZE);
		kunmap_local(p);
		lock_page(to);
		dst[i] = migrate_pfn(page_to_pfn(to));
		if (src[i] & MIGRATE_PFN_WRITE)
			dst[i] |= MIGRATE_PFN_WRITE;
		done++;
	}
	return done;
}

static unsigned long count_moved(const unsigned long *src, const unsigned long *dst, unsigned long n)
{
	unsigned long i, moved = 0;

	for (i = 0; i < n; i++)
		if (src[i] & MIGRATE_PFN_MIGRATE && dst[i])
			moved++;
	return moved;
}

static vm_fault_t private_to_ram(struct vm_fault *vmf)
{
	struct vnicgpu *gpu = gpu_of(vmf->page);
	unsigned long src = 0, dst = 0;
	struct migrate_vma m = {
		.vma = vmf->vma,
		.src = &src,
		.dst = &dst,
		.start = vmf->address & PAGE_MASK,
		.end = (vmf->address & PAGE_MASK) + PAGE_SIZE,
		.pgmap_owner = gpu,
		.flags = MIGRATE_VMA_SELECT_DEVICE_PRIVATE,
		.fault_page = vmf->page,
	};
	vm_fault_t ret = 0;

	if (migrate_vma_setup(&m))
		return VM_FAULT_SIGBUS;
	if (m.cpages && !copy_to_ram(gpu, &src, &dst, 1))
		ret = VM_FAULT_OOM;
	migrate_vma_pages(&m);
	atomic64_add(count_moved(&src, &dst, 1), &gpu->faulted);
	migrate_vma_finalize(&m);
	return ret; /* 0 also if Linux did not let the page move: the CPU faults again */
}

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 19, 0)
static void private_page_free(struct page *page)
{
	private_free(page_folio(page));
}
#endif

static const struct dev_pagemap_ops private_ops = {
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 19, 0)
	.page_free = private_page_free,
#else
	.folio_free = private_free,
#endif
	.migrate_to_ram = private_to_ram,
};

static int private_ready(struct vnicgpu *gpu)
{
	struct resource *res;
	void *p;

	if (!IS_ENABLED(CONFIG_DEVICE_PRIVATE)) /* off in Debian's 6.12; memremap_pages would WARN */
		return -EOPNOTSUPP;
	guard(mutex)(&gpu->private_lock);
	if (gpu->region)
		return 0;
	res = request_free_mem_region(&iomem_resource, gpu->size, gpu->name);
	if (IS_ERR(res))
		return PTR_ERR(res);
	gpu->pgmap.type = MEMORY_DEVICE_PRIVATE;
	gpu->pgmap.range.start = res->start;
	gpu->pgmap.range.end = res->end;
	gpu->pgmap.nr_range = 1;
	gpu->pgmap.ops = &private_ops;
	gpu->pgmap.owner = gpu;
	p = memremap_pages(&gpu->pgmap, NUMA_NO_NODE);
	if (IS_ERR(p)) {
		release_mem_region(res->start, resource_size(res));
		return PTR_ERR(p);
	}
	gpu->region = res;
	return 0;
}

static void copy_to_gpu(struct vnicgpu *gpu, const unsigned long *src, unsigned long *dst, unsigned long n)
{
	unsigned long i;

	for (i = 0; i < n; i++) {
		struct page *from = migrate_pfn_to_page(src[i]), *to;

		dst[i] = 0;
		if (!(src[i] & MIGRATE_PFN_MIGRATE))
			continue;
		to = private_alloc(gpu);
		if (!to)
			continue;
		if (from) {
			void *p = kmap_local_page(from);

			memcpy(gpu->mem + offset_of(gpu, to), p, PAGE_SIZE);
			kunmap_local(p);
		} else { /* no page yet, or the zero page */
			memset(gpu->mem + offset_of(gpu, to), 0, PAGE_SIZE);
		}
		dst[i] = migrate_pfn(page_to_pfn(to));
		if (src[i] & MIGRATE_PFN_WRITE)
			dst[i] |= MIGRATE_PFN_WRITE;
	}
}

static int move_batch(struct vnicgpu *gpu, struct vm_area_struct *vma, unsigned long start, unsigned long end,
		      bool to_gpu, unsigned long *moved)
{
	unsigned long src[BATCH] = {}, dst[BATCH] = {};
	struct migrate_vma m = {
		.vma = vma,
		.src = src,
		.dst = dst,
		.start = start,
		.end = end,
		.pgmap_owner = gpu,
		.flags = to_gpu ? MIGRATE_VMA_SELECT_SYSTEM : MIGRATE_VMA_SELECT_DEVICE_PRIVATE,
	};
	int ret = migrate_vma_setup(&m);

	if (ret)
		return ret;
	if (to_gpu)
		copy_to_gpu(gpu, src, dst, m.npages);
	else
		copy_to_ram(gpu, src, dst, m.npages);
	migrate_vma_pages(&m);
	*moved = count_moved(src, dst, m.npages);
	atomic64_add(*moved, to_gpu ? &gpu->to_gpu : &gpu->to_ram);
	migrate_vma_finalize(&m);
	return 0;
}

int vnicgpu_migrate(struct vnicgpu *gpu, struct vnicgpu_migrate *arg)
{
	bool to_gpu = arg->flags & VNICGPU_TO_GPU;
	struct mm_struct *mm = current->mm;
	u64 end = arg->addr + arg->size;
	unsigned long addr;
	int ret;

	if (arg->flags & ~VNICGPU_TO_GPU || arg->pad || !arg->size || !PAGE_ALIGNED(arg->addr) ||
	    !PAGE_ALIGNED(arg->size) || end < arg->addr || end > TASK_SIZE)
		return -EINVAL;
	ret = private_ready(gpu);
	if (ret)
		return ret;
	arg->moved = 0;
	for (addr = arg->addr; addr < end;) {
		struct vm_area_struct *vma;
		unsigned long moved = 0, next;

		if (fatal_signal_pending(current))
			return -EINTR;
		if (READ_ONCE(gpu->gone)) /* the GPU's removal waits for this loop */
			return -ENODEV;
		ret = mmap_read_lock_killable(mm);
		if (ret)
			return ret;
		vma = vma_lookup(mm, addr);
		if (!vma) {
			mmap_read_unlock(mm);
			return -EFAULT;
		}
		next = min3((unsigned long)end, vma->vm_end, addr + BATCH * PAGE_SIZE);
		ret = vma_is_anonymous(vma) ? move_batch(gpu, vma, addr, next, to_gpu, &moved) : 0;
		mmap_read_unlock(mm);
		if (ret)
			return ret;
		arg->moved += moved;
		addr = next;
	}
	return 0;
}

static bool where_invalidate(struct mmu_interval_notifier *n, const struct mmu_notifier_range *range,
			     unsigned long seq)
{
	mmu_interval_set_seq(n, seq);
	return true;
}

static const struct mmu_interval_notifier_ops where_ops = {
	.invalidate = where_invalidate,
};

static u64 place_of(const struct vnicgpu *gpu, unsigned long pfn)
{
	struct page *page;

	if (!(pfn & HMM_PFN_VALID))
		return VNICGPU_ABSENT;
	page = hmm_pfn_to_page(pfn);
	return is_ours(gpu, page) ? offset_of(gpu, page) : VNICGPU_RAM;
}

static int look(struct vnicgpu *gpu, struct hmm_range *range)
{
	struct mmu_interval_notifier notifier;
	struct mm_struct *mm = current->mm;
	unsigned long i, n = (range->end - range->start) >> PAGE_SHIFT;
	u64 *places = (u64 *)range->hmm_pfns;
	int ret = vnicgpu_watch(&notifier, mm, range->start, range->end - range->start, &where_ops);

	if (ret)
		return ret;
	range->notifier = &notifier;
	do {
		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			break;
		}
		if (READ_ONCE(gpu->gone)) { /* the GPU's removal waits for this loop */
			ret = -ENODEV;
			break;
		}
		range->notifier_seq = mmu_interval_read_begin(&notifier);
		mmap_read_lock(mm);
		ret = hmm_range_fault(range);
		mmap_read_unlock(mm);
	} while (ret == -EBUSY || (!ret && mmu_interval_read_retry(&notifier, range->notifier_seq)));
	mmu_interval_notifier_remove(&notifier);
	BUILD_BUG_ON(sizeof(*places) != sizeof(*range->hmm_pfns));
	for (i = 0; !ret && i < n; i++)
		places[i] = place_of(gpu, range->hmm_pfns[i]);
	return ret;
}

int vnicgpu_where(struct vnicgpu *gpu, const struct vnicgpu_where *arg)
{
	u64 n = arg->size >> PAGE_SHIFT, end = arg->addr + arg->size;
	struct hmm_range range = {
		.start = arg->addr,
		.end = end,
		.dev_private_owner = gpu,
	};
	int ret, idx;

	if (!vnicgpu_enter(gpu, &idx))
		return -ENODEV;
	ret = -EINVAL;
	if (!arg->size || !PAGE_ALIGNED(arg->addr) || !PAGE_ALIGNED(arg->size) || end < arg->addr || end > TASK_SIZE)
		goto exit;
	ret = -E2BIG;
	if (n > MAX_WHERE)
		goto exit;
	ret = -ENOMEM;
	range.hmm_pfns = kvcalloc(n, sizeof(*range.hmm_pfns), GFP_KERNEL_ACCOUNT);
	if (range.hmm_pfns)
		ret = look(gpu, &range);
exit:
	vnicgpu_exit(idx);
	if (!ret && copy_to_user(u64_to_user_ptr(arg->places), range.hmm_pfns, n * sizeof(*range.hmm_pfns)))
		ret = -EFAULT;
	kvfree(range.hmm_pfns);
	return ret;
}

static void evict(struct vnicgpu *gpu)
{
	unsigned long first = PHYS_PFN(gpu->pgmap.range.start), n = gpu->size >> PAGE_SHIFT, done;
	unsigned long src[BATCH], dst[BATCH];

	for (done = 0; done < n && atomic_long_read(&gpu->private); done += BATCH) {
		unsigned long k = min(n - done, (unsigned long)BATCH);

		if (migrate_device_range(src, first + done, k))
			continue;
		copy_to_ram(gpu, src, dst, k);
		migrate_device_pages(src, dst, k);
		atomic64_add(count_moved(src, dst, k), &gpu->evicted);
		migrate_device_finalize(src, dst, k);
		cond_resched();
	}
}

void vnicgpu_private_end(struct vnicgpu *gpu)
{
	unsigned long warned = jiffies;

	if (!gpu->region)
		return;
	while (atomic_long_read(&gpu->private)) {
		evict(gpu);
		if (!atomic_long_read(&gpu->private))
			break;
		if (time_after(jiffies, warned + 10 * HZ)) {
			dev_warn(&gpu->pdev->dev, "removal waits for %ld pages of programs to leave\n",
				 atomic_long_read(&gpu->private));
			warned = jiffies;
		}
		schedule_timeout_uninterruptible(1);
	}
	memunmap_pages(&gpu->pgmap);
	release_mem_region(gpu->region->start, resource_size(gpu->region));
	gpu->region = NULL;
}
