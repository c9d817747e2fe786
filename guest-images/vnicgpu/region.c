// SPDX-License-Identifier: GPL-2.0
/*
 * Regions: memory of programs whose pages a NIC gets on demand (Documentation/mm/hmm.rst), by
 * VNICGPU_FAULT. When Linux invalidates pages that the NIC may use, it waits until the NIC has
 * confirmed through the mailbox that it has released them, or has not answered in time (ack_ms). If
 * an invalidation would have to wait and must not, it fails. A region whose NIC has not answered in
 * time is quarantined: the NIC gets no more of its pages.
 *
 * An invalidation and the function answer (fault.c) exclude each other by the region's lock:
 * after an invalidation, answer finds a new sequence number; after answer, the invalidation finds
 * the pages in the bitmap. The lock is held while the NIC is asked: a second invalidation must
 * not return before the NIC has released what the first one took.
 */
#include <linux/bitmap.h>
#include <linux/idr.h>
#include <linux/ktime.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/sched/mm.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "internal.h"
#include "region.h"

#define MAX_SIZE	SZ_1G
#define MAX_REGIONS	16 /* per file */

/*
 * The regions of all GPUs, by number. A number is not reused soon, because the NIC may still have
 * pages under the number of a closed region that was quarantined.
 */
static DEFINE_IDR(numbers);
static DEFINE_MUTEX(numbers_lock);

static void region_free(struct kref *ref)
{
	struct region *r = container_of(ref, struct region, ref);

	mmdrop(r->mm);
	scoped_guard(mutex, &numbers_lock)
		idr_remove(&numbers, r->id);
	mutex_destroy(&r->lock);
	kvfree(r->mapped);
	kfree(r);
}

void vnicgpu_region_put(struct region *r)
{
	kref_put(&r->ref, region_free);
}

static unsigned long weight_from(const unsigned long *map, unsigned long first, unsigned long end)
{
	unsigned long n = 0;

	for_each_set_bit_from(first, map, end)
		n++;
	return n;
}

/* Takes from the NIC its pages of [first, end), or quarantines the region. Call it under the region's lock. */
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
	waited = min(ktime_us_delta(ktime_get(), t), (s64)U32_MAX); /* so that its square does not overflow */
	r->stats.waits[waited ? min(ilog2(waited * waited), VNICGPU_WAITS - 1) : 0]++;
	if (!ret)
		return;
	/* There are no further notes for this region, so that reclaim does not wait for it again. */
	r->stats.timeouts++;
	r->stats.quarantined = 1;
	r->stats.mapped = 0;
	r->error = -EIO;
	bitmap_zero(r->mapped, r->pages);
	dev_warn_ratelimited(&r->gpu->pdev->dev, "region %u is quarantined: the NIC has not answered within %u ms\n",
			     r->id, r->gpu->ack_ms);
}

/*
 * Linux calls region_invalidate before it changes the program's page table in the region, also while
 * it reclaims memory, or because this module moves pages. Returns false if it would have to wait and
 * must not.
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

static void region_end(struct region *r, int error, u32 reason)
{
	guard(mutex)(&r->lock);
	if (!bitmap_empty(r->mapped, r->pages))
		take_back(r, 0, r->pages, reason);
	r->error = error;
}

/* Ends r, and drops the reference of the file's list. Call it when no other call can find r in that list any more. */
static void region_close(struct region *r)
{
	/* Before list_del: the mailbox exists until all regions in the GPU's list have ended. */
	region_end(r, -ENOENT, VNICGPU_REASON_CLOSED);
	mmu_interval_notifier_remove(&r->notifier);
	scoped_guard(mutex, &r->gpu->regions_lock)
		list_del(&r->of_gpu);
	vnicgpu_region_put(r);
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
	scoped_guard(mutex, &numbers_lock)
		ret = idr_alloc_cyclic(&numbers, r, 1, 0, GFP_KERNEL_ACCOUNT);
	if (ret < 0)
		goto free;
	r->id = ret;
	r->mm = current->mm;
	mmgrab(r->mm);
	ret = vnicgpu_watch(&r->notifier, r->mm, start, size, &region_ops);
	if (ret) {
		vnicgpu_region_put(r);
		return ret;
	}
	scoped_guard(mutex, &gpu->regions_lock)
		list_add(&r->of_gpu, &gpu->regions);
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
	scoped_guard(mutex, &f->lock) {
		if (f->nregions >= MAX_REGIONS)
			return -EMFILE;
		f->nregions++;
	}
	ret = region_new(f->gpu, arg->addr, arg->size, &r);
	guard(mutex)(&f->lock);
	if (ret) {
		f->nregions--;
		return ret;
	}
	arg->id = r->id;
	list_add(&r->list, &f->regions);
	return 0;
}

/* Returns the region of the file with this number, or NULL. Call it under the file's lock. */
static struct region *find(struct vnicgpu_file *f, u32 id)
{
	struct region *r;

	list_for_each_entry(r, &f->regions, list)
		if (r->id == id)
			return r;
	return NULL;
}

struct region *vnicgpu_region_get(struct vnicgpu_file *f, u32 id)
{
	struct region *r;

	guard(mutex)(&f->lock);
	r = find(f, id);
	if (r)
		kref_get(&r->ref);
	return r;
}

int vnicgpu_region_close(struct vnicgpu_file *f, const struct vnicgpu_region_close *arg)
{
	struct region *r;

	if (arg->pad)
		return -EINVAL;
	scoped_guard(mutex, &f->lock) {
		r = find(f, arg->id);
		if (!r)
			return -ENOENT;
		list_del(&r->list);
		f->nregions--;
	}
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

	/* Release regions_lock before each region_end: a concurrent close of a region need not wait for all. */
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
			vnicgpu_region_put(r);
		}
	} while (found);
	vnicgpu_mailbox_end(gpu);
}

int vnicgpu_region_stats(struct vnicgpu_file *f, struct vnicgpu_region_stats *arg)
{
	struct region *r = vnicgpu_region_get(f, arg->id);

	if (!r)
		return -ENOENT;
	scoped_guard(mutex, &r->lock)
		*arg = r->stats;
	arg->id = r->id;
	arg->refused = atomic64_read(&r->refused);
	vnicgpu_region_put(r);
	return 0;
}
