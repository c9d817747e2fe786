// SPDX-License-Identifier: GPL-2.0
/*
 * Regions: memory of programs whose pages a NIC gets on demand (Documentation/mm/hmm.rst). When the
 * NIC misses pages, a program of the guest asks for them. When Linux invalidates pages, it waits
 * until the NIC has confirmed through the mailbox that it has released them. The NIC confirms
 * without any program's help, so no program can keep Linux waiting. A NIC that does not answer in
 * time loses the region for good.
 *
 * An invalidation either is over before answer takes the lock, or finds the answer's pages in the
 * bitmap. Two concurrent invalidations send their notes one after the other: the
 * second must not return before the NIC has released what the first one took.
 */
#include <linux/bitmap.h>
#include <linux/hmm.h>
#include <linux/idr.h>
#include <linux/ktime.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "internal.h"

#define MAX_SIZE	SZ_1G
#define MAX_REGIONS	16 /* per file */
#define MAX_FAULT	64 /* pages */

/* After this many attempts that an invalidation spoiled, the driver requests half as many pages. */
#define PATIENCE 16

struct region {
	struct mmu_interval_notifier notifier;
	struct kref ref;			/* the file's reference, and one per user that holds no lock of a list with the region */
	struct vnicgpu *gpu;
	struct mm_struct *mm;			/* the owner of the memory; its page tables may be gone */
	struct list_head list;			/* entry in the file's list */
	struct list_head of_gpu;
	bool ended;				/* under gpu->regions_lock: vnicgpu_regions_end has handled it */
	u32 id;
	unsigned long start, pages;

	struct mutex lock;			/* taken in invalidations: do not allocate memory while holding it */
	unsigned long *mapped;			/* under lock: pages that the NIC may use */
	u32 generation;				/* under lock: number of the last invalidation */
	int error;				/* under lock: errno of further VNICGPU_FAULT calls; 0: the NIC still gets pages */
	struct vnicgpu_region_stats stats;	/* under lock, except refused and the fields that are no counters */
	atomic64_t refused;
};

/*
 * The numbers of all regions. A number is not reused soon, because the NIC may still know the old
 * region.
 */
static DEFINE_IDR(numbers);
static DEFINE_MUTEX(numbers_lock);

static void region_free(struct kref *ref)
{
	struct region *r = container_of(ref, struct region, ref);

	mmdrop(r->mm);
	mutex_lock(&numbers_lock);
	idr_remove(&numbers, r->id);
	mutex_unlock(&numbers_lock);
	mutex_destroy(&r->lock);
	kvfree(r->mapped);
	kfree(r);
}

static void region_put(struct region *r)
{
	kref_put(&r->ref, region_free);
}

/* Counts the set bits of [first, end). */
static unsigned long weight_from(const unsigned long *map, unsigned long first, unsigned long end)
{
	unsigned long n = 0;

	for_each_set_bit_from(first, map, end)
		n++;
	return n;
}

/* Makes the NIC release the pages of [first, end) that it may use. Under lock. */
static void take_back(struct region *r, unsigned long first, unsigned long end, u32 reason)
{
	struct vnicgpu_note note = { .region = r->id, .reason = reason };
	u64 waited;
	ktime_t t;
	int ret;

	r->generation++;
	note.generation = r->generation;
	note.first = find_next_bit(r->mapped, end, first);
	if (note.first >= end) {
		r->stats.untold++;
		return;
	}
	note.pages = find_last_bit(r->mapped, end) + 1 - note.first;
	r->stats.mapped -= weight_from(r->mapped, note.first, note.first + note.pages);
	bitmap_clear(r->mapped, note.first, note.pages);
	r->stats.invalidations++;
	t = ktime_get();
	ret = vnicgpu_tell(r->gpu, &note);
	waited = min(ktime_us_delta(ktime_get(), t), (s64)U32_MAX); /* bounded, so that its square does not overflow */
	r->stats.waits[waited ? min(ilog2(waited * waited), VNICGPU_WAITS - 1) : 0]++;
	if (!ret)
		return;
	/*
	 * Send no further notes for this region, so that the memory's owner waits only once. The
	 * host makes sure that the NIC stops using the region.
	 */
	r->stats.timeouts++;
	r->stats.quarantined = 1;
	r->stats.mapped = 0;
	r->error = -EIO;
	bitmap_zero(r->mapped, r->pages);
	dev_warn_ratelimited(&r->gpu->pdev->dev, "region %u is quarantined: the NIC has not answered within %u ms\n",
			     r->id, r->gpu->ack_ms);
}

/*
 * Linux calls this when it invalidates pages of the region, possibly while reclaiming memory. It
 * also takes pages from the NIC that this module itself moves, because the NIC has their old places.
 */
static bool region_invalidate(struct mmu_interval_notifier *n, const struct mmu_notifier_range *range,
			      unsigned long seq)
{
	struct region *r = container_of(n, struct region, notifier);
	unsigned long end = r->start + (r->pages << PAGE_SHIFT), first, last;

	first = (max(range->start, r->start) - r->start) >> PAGE_SHIFT;
	last = (min(range->end, end) - r->start + PAGE_SIZE - 1) >> PAGE_SHIFT;
	if (mmu_notifier_range_blockable(range)) {
		mutex_lock(&r->lock);
	} else {
		if (!mutex_trylock(&r->lock))
			goto refuse;
		if (find_next_bit(r->mapped, last, first) < last) {
			mutex_unlock(&r->lock);
			goto refuse;
		}
	}
	mmu_interval_set_seq(n, seq);
	take_back(r, first, last, range->event);
	mutex_unlock(&r->lock);
	return true;
refuse:
	atomic64_inc(&r->refused);
	return false;
}

static const struct mmu_interval_notifier_ops region_ops = {
	.invalidate = region_invalidate,
};

/*
 * Takes back all pages that the NIC has, with a note that contains reason, and makes further
 * VNICGPU_FAULT calls fail with error.
 */
static void region_end(struct region *r, int error, u32 reason)
{
	mutex_lock(&r->lock);
	if (!bitmap_empty(r->mapped, r->pages))
		take_back(r, 0, r->pages, reason);
	r->error = error;
	mutex_unlock(&r->lock);
}

/* Closes a region that is in no file's list any more. */
static void region_close(struct region *r)
{
	/* Call this before the region leaves the GPU's list: until then the mailbox exists. */
	region_end(r, -ENOENT, VNICGPU_REASON_CLOSED);
	mmu_interval_notifier_remove(&r->notifier);
	mutex_lock(&r->gpu->regions_lock);
	list_del(&r->of_gpu);
	mutex_unlock(&r->gpu->regions_lock);
	region_put(r);
}

static int region_new(struct vnicgpu *gpu, unsigned long start, unsigned long size, struct region **region)
{
	struct region *r;
	int ret = -ENOMEM;

	r = kzalloc(sizeof(*r), GFP_KERNEL_ACCOUNT);
	if (!r)
		return ret;
	r->gpu = gpu;
	r->start = start;
	r->pages = size >> PAGE_SHIFT;
	kref_init(&r->ref);
	mutex_init(&r->lock);
	r->mapped = kvcalloc(BITS_TO_LONGS(r->pages), sizeof(long), GFP_KERNEL_ACCOUNT);
	if (!r->mapped)
		goto free;
	mutex_lock(&numbers_lock);
	ret = idr_alloc_cyclic(&numbers, r, 1, 0, GFP_KERNEL_ACCOUNT);
	mutex_unlock(&numbers_lock);
	if (ret < 0)
		goto free;
	r->id = ret;
	r->mm = current->mm;
	mmgrab(r->mm);
	ret = vnicgpu_watch(&r->notifier, r->mm, start, size, &region_ops);
	if (ret) {
		region_put(r);
		return ret;
	}
	mutex_lock(&gpu->regions_lock);
	list_add(&r->of_gpu, &gpu->regions);
	mutex_unlock(&gpu->regions_lock);
	*region = r;
	return 0;
free:
	kvfree(r->mapped);
	kfree(r);
	return ret;
}

int vnicgpu_region_open(struct vnicgpu_file *f, struct vnicgpu_region_open *arg)
{
	u64 end = arg->addr + arg->size;
	struct region *r;
	int ret;

	if (arg->pad || !arg->size || arg->size > MAX_SIZE || !PAGE_ALIGNED(arg->addr) || !PAGE_ALIGNED(arg->size) ||
	    end < arg->addr || end > TASK_SIZE)
		return -EINVAL;
	ret = vnicgpu_mailbox(f->gpu);
	if (ret)
		return ret;
	mutex_lock(&f->lock);
	if (f->nregions >= MAX_REGIONS)
		ret = -EMFILE;
	else
		f->nregions++;
	mutex_unlock(&f->lock);
	if (ret)
		return ret;
	ret = region_new(f->gpu, arg->addr, arg->size, &r);
	mutex_lock(&f->lock);
	if (ret) {
		f->nregions--;
	} else {
		arg->id = r->id;
		list_add(&r->list, &f->regions);
	}
	mutex_unlock(&f->lock);
	return ret;
}

/* Returns a region of the file, or NULL. Under the file's lock. */
static struct region *find(struct vnicgpu_file *f, u32 id)
{
	struct region *r;

	list_for_each_entry(r, &f->regions, list)
		if (r->id == id)
			return r;
	return NULL;
}

/* Like find, but takes a reference for the caller. */
static struct region *region_get(struct vnicgpu_file *f, u32 id)
{
	struct region *r;

	mutex_lock(&f->lock);
	r = find(f, id);
	if (r)
		kref_get(&r->ref);
	mutex_unlock(&f->lock);
	return r;
}

int vnicgpu_region_close(struct vnicgpu_file *f, const struct vnicgpu_region_close *arg)
{
	struct region *r;

	if (arg->pad)
		return -EINVAL;
	mutex_lock(&f->lock);
	r = find(f, arg->id);
	if (r) {
		list_del(&r->list);
		f->nregions--;
	}
	mutex_unlock(&f->lock);
	if (!r)
		return -ENOENT;
	region_close(r);
	return 0;
}

void vnicgpu_regions_close(struct vnicgpu_file *f)
{
	struct region *r, *next;

	list_for_each_entry_safe(r, next, &f->regions, list)
		region_close(r);
}

void vnicgpu_regions_end(struct vnicgpu *gpu)
{
	struct region *r;
	bool found;

	/* Release the lock for each region: a concurrent close of one region need not wait for all. */
	do {
		found = false;
		mutex_lock(&gpu->regions_lock);
		list_for_each_entry(r, &gpu->regions, of_gpu) {
			if (!r->ended) {
				found = r->ended = true;
				kref_get(&r->ref);
				break;
			}
		}
		mutex_unlock(&gpu->regions_lock);
		if (found) {
			region_end(r, -ENODEV, VNICGPU_REASON_REMOVED);
			region_put(r);
		}
	} while (found);
	vnicgpu_mailbox_end(gpu);
}

int vnicgpu_region_stats(struct vnicgpu_file *f, struct vnicgpu_region_stats *arg)
{
	struct region *r = region_get(f, arg->id);

	if (!r)
		return -ENOENT;
	mutex_lock(&r->lock);
	*arg = r->stats;
	mutex_unlock(&r->lock);
	arg->id = r->id;
	arg->refused = atomic64_read(&r->refused);
	region_put(r);
	return 0;
}

static u64 invalid(int error)
{
	return VNICGPU_ENTRY_INVALID | (u64)-error << VNICGPU_ENTRY_ERRNO;
}

/* Returns the entry for a present page. Under the region's lock, for which an invalidation of the page waits. */
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
		 * The NIC sets no dirty bit in page tables. Without this call Linux would drop a
		 * clean page under MADV_FREE.
		 */
		folio_mark_dirty(page_folio(page));
	}
	return entry;
}

/*
 * Makes n pages present. For pages in the GPU Linux only returns their places, even if the NIC wants
 * to write to them and they are read-only, as after a fork. The function then faults these pages in
 * as for a CPU, which moves them to RAM.
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
		/* EBUSY if this call moved pages, which called the notifier; the next attempt finds them in RAM. */
		ret = hmm_range_fault(range);
	}
	range->dev_private_owner = owner;
	return ret;
}

/*
 * Makes n pages of a vma present. If one page fails, Linux fails the whole range: the function then
 * requests each page alone. EBUSY: there was an invalidation.
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
 * Makes n pages from addr on present: pfns gets their places, and entries the errors of the pages
 * without a valid pfn. It accepts only private memory of the program: page faults of other memory
 * may wait for another program (FUSE), and removal of the GPU would wait with them.
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
 * Marks pages as used by the NIC, and fills in their entries. EAGAIN: an invalidation came in
 * between.
 */
static int answer(struct region *r, const struct hmm_range *range, u64 first, unsigned long n,
		  const unsigned long *pfns, u64 *entries, struct vnicgpu_fault *arg)
{
	unsigned long i;
	int ret;

	mutex_lock(&r->lock);
	ret = r->error;
	if (!ret && mmu_interval_read_retry(&r->notifier, range->notifier_seq))
		ret = -EAGAIN;
	if (ret)
		goto unlock;
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
unlock:
	mutex_unlock(&r->lock);
	return ret;
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
		if (READ_ONCE(r->gpu->gone)) /* the GPU's removal waits for this call */
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
	r = region_get(f, arg->id);
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
		region_put(r);
		return ret;
	}
	ret = fault(r, r->mm, arg, entries);
	vnicgpu_exit(idx);
	mmput(r->mm); /* may drop the last reference, which invalidates all pages of the program */
	region_put(r);
	if (!ret && copy_to_user(u64_to_user_ptr(arg->entries), entries, arg->count * sizeof(*entries)))
		ret = -EFAULT;
	return ret;
}
