// SPDX-License-Identifier: GPL-2.0
/* The ioctl VNICGPU_FAULT: makes pages of a region present, and returns for each page its place or an error. */
#include <linux/bitmap.h>
#include <linux/hmm.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "internal.h"
#include "region.h"

#define MAX_FAULT	64 /* most pages of a call */

/* Invalidations spoil attempts. At each PATIENCE-th attempt of a call, fault halves the number of pages, down to 1. */
#define PATIENCE 16

static u64 invalid(int error)
{
	return VNICGPU_ENTRY_INVALID | (u64)-error << VNICGPU_ENTRY_ERRNO;
}

/*
 * Returns the entry of a page whose pfn is valid. Call it with the region's lock held, between
 * vnicgpu_enter and vnicgpu_exit.
 */
static u64 entry_of(const struct vnicgpu *gpu, unsigned long pfn)
{
	struct page *page = hmm_pfn_to_page(pfn);
	u64 entry;

	if (vnicgpu_private_at(gpu, page, &entry))
		entry |= VNICGPU_ENTRY_GPU;
	else if (!is_zone_device_page(page))
		entry = page_to_phys(hmm_pfn_to_page(pfn)) | VNICGPU_ENTRY_RAM;
	else
		return invalid(-EOPNOTSUPP);
	if (pfn & HMM_PFN_WRITE) {
		entry |= VNICGPU_ENTRY_WRITE;
		/*
		 * The NIC sets no dirty bit in page tables. After madvise(MADV_FREE), Linux may drop
		 * a clean page.
		 */
		folio_mark_dirty(page_folio(page));
	}
	return entry;
}

/*
 * hmm_range_fault does not make a read-only page in the GPU writable. If the range requests
 * writable pages, fault_range therefore faults in such a page as a CPU would, which moves it to RAM.
 */
static int fault_range(struct hmm_range *range, unsigned long addr, unsigned long n, unsigned long *pfns)
{
	void *owner = range->dev_private_owner;
	unsigned long i, k;
	int ret;

	range->start = addr;
	range->end = addr + (n << PAGE_SHIFT);
	range->hmm_pfns = pfns;
	ret = hmm_range_fault(range);
	if (!(range->default_flags & HMM_PFN_REQ_WRITE))
		return ret;
	range->dev_private_owner = NULL;
	for (i = 0; !ret && i < n; i += k) {
		k = 1;
		if (pfns[i] & HMM_PFN_WRITE)
			continue;
		while (i + k < n && !(pfns[i + k] & HMM_PFN_WRITE))
			k++;
		range->start = addr + (i << PAGE_SHIFT);
		range->end = range->start + (k << PAGE_SHIFT);
		range->hmm_pfns = pfns + i;
		ret = hmm_range_fault(range);
	}
	range->dev_private_owner = owner;
	return ret;
}

/*
 * If one page fails, hmm_range_fault fails for the whole range. fault_vma then requests each page
 * alone, and stores the page's error in entries. EBUSY: Linux has invalidated pages of the region.
 */
static int fault_vma(struct hmm_range *range, unsigned long addr, unsigned long n, unsigned long *pfns, u64 *entries)
{
	unsigned long i;
	int ret = fault_range(range, addr, n, pfns);

	if (!ret || ret == -EBUSY)
		return ret;
	for (i = 0; i < n; i++) {
		pfns[i] = 0;
		ret = fault_range(range, addr + (i << PAGE_SHIFT), 1, pfns + i);
		if (ret == -EBUSY)
			return ret;
		if (ret) {
			pfns[i] = 0;
			entries[i] = invalid(ret);
		}
	}
	return 0;
}

/*
 * Stores in pfns the places of the n pages from addr on. If a page has no valid pfn, its element of
 * entries is its error; the other elements mean nothing. Memory that is not anonymous is refused
 * (EOPNOTSUPP): a page fault there may wait for another program (FUSE), and the removal of the GPU
 * would wait, too.
 */
static int fault_pages(struct hmm_range *range, struct mm_struct *mm, unsigned long addr, unsigned long n,
		       unsigned long *pfns, u64 *entries)
{
	struct vm_area_struct *vma;
	unsigned long i, k, j;
	int ret;

	memset(pfns, 0, n * sizeof(*pfns));
	for (i = 0; i < n; i += k, addr += k << PAGE_SHIFT) {
		k = 1;
		entries[i] = invalid(-EFAULT);
		vma = vma_lookup(mm, addr);
		if (!vma)
			continue;
		k = min(n - i, (vma->vm_end - addr) >> PAGE_SHIFT);
		for (j = i; j < i + k; j++)
			entries[j] = invalid(-EOPNOTSUPP);
		if (!vma_is_anonymous(vma))
			continue;
		ret = fault_vma(range, addr, k, pfns + i, entries + i);
		if (ret)
			return ret;
	}
	return 0;
}

/*
 * Completes the call's entries, and sets its generation. fault_pages has handled the first n pages;
 * the others get an invalid entry (EAGAIN). Returns EAGAIN if Linux has invalidated pages of the
 * region since range->notifier_seq was read, or the region's error.
 */
static int answer(struct region *r, const struct hmm_range *range, u64 first, unsigned long n,
		  const unsigned long *pfns, u64 *entries, struct vnicgpu_fault *arg)
{
	unsigned long i;

	guard(mutex)(&r->lock);
	if (r->error)
		return r->error;
	if (mmu_interval_read_retry(&r->notifier, range->notifier_seq))
		return -EAGAIN;
	for (i = 0; i < arg->count; i++) {
		if (i >= n)
			entries[i] = invalid(-EAGAIN);
		else if (pfns[i] & HMM_PFN_VALID)
			entries[i] = entry_of(r->gpu, pfns[i]);
		switch (entries[i] & VNICGPU_ENTRY_KIND) {
		case VNICGPU_ENTRY_RAM:
			r->stats.ram++;
			break;
		case VNICGPU_ENTRY_GPU:
			r->stats.gpu++;
			break;
		default:
			r->stats.invalid++;
			continue;
		}
		if (!__test_and_set_bit(first + i, r->mapped))
			r->stats.mapped++;
	}
	r->stats.faults++;
	arg->generation = r->generation;
	return 0;
}

static int fault(struct region *r, struct mm_struct *mm, struct vnicgpu_fault *arg, u64 *entries)
{
	unsigned long pfns[MAX_FAULT], n = arg->count, addr = r->start + (arg->first << PAGE_SHIFT);
	struct hmm_range range = {
		.notifier = &r->notifier,
		.default_flags = HMM_PFN_REQ_FAULT | (arg->flags & VNICGPU_FAULT_WRITE ? HMM_PFN_REQ_WRITE : 0),
		.dev_private_owner = arg->flags & VNICGPU_FAULT_RAM ? NULL : r->gpu,
	};
	unsigned int tries = 0;
	int ret;

	do {
		if (fatal_signal_pending(current))
			return -EINTR;
		if (READ_ONCE(r->gpu->gone)) /* the GPU's removal waits for this loop */
			return -ENODEV;
		if (READ_ONCE(r->error))
			return r->error;
		if (++tries % PATIENCE == 0 && n > 1)
			n /= 2;
		range.notifier_seq = mmu_interval_read_begin(&r->notifier);
		ret = mmap_read_lock_killable(mm);
		if (ret)
			return ret;
		ret = fault_pages(&range, mm, addr, n, pfns, entries);
		mmap_read_unlock(mm);
		if (!ret)
			ret = answer(r, &range, arg->first, n, pfns, entries, arg);
		cond_resched();
	} while (ret == -EBUSY || ret == -EAGAIN);
	return ret;
}

int vnicgpu_region_fault(struct vnicgpu_file *f, struct vnicgpu_fault *arg)
{
	u64 entries[MAX_FAULT];
	struct region *r;
	int ret, idx;

	if (!vnicgpu_enter(f->gpu, &idx))
		return -ENODEV;
	r = vnicgpu_region_get(f, arg->id);
	if (!r) {
		vnicgpu_exit(idx);
		return -ENOENT;
	}
	if (arg->flags & ~(VNICGPU_FAULT_WRITE | VNICGPU_FAULT_RAM) || !arg->count || arg->count > MAX_FAULT ||
	    arg->first >= r->pages || arg->count > r->pages - arg->first)
		ret = -EINVAL;
	else if (!mmget_not_zero(r->mm))
		ret = -ESRCH;
	else
		ret = 0;
	if (ret) {
		vnicgpu_exit(idx);
		vnicgpu_region_put(r);
		return ret;
	}
	ret = fault(r, r->mm, arg, entries);
	vnicgpu_exit(idx);
	mmput(r->mm); /* after vnicgpu_exit: the last mmput frees all pages of the program, and may wait */
	vnicgpu_region_put(r);
	if (!ret && copy_to_user(u64_to_user_ptr(arg->entries), entries, arg->count * sizeof(*entries)))
		ret = -EFAULT;
	return ret;
}
