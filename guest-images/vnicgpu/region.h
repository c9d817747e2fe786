/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _VNICGPU_REGION_H
#define _VNICGPU_REGION_H

#include "internal.h"

/* Memory of a program whose pages a NIC gets on demand. */
struct region {
	struct mmu_interval_notifier notifier;
	struct kref ref;			/* of the file's list, and of functions that use the region without the list's lock */
	struct vnicgpu *gpu;
	struct mm_struct *mm;			/* the owner of the memory; its page tables may be gone */
	struct list_head list;
	struct list_head of_gpu;
	bool ended;				/* under gpu->regions_lock: vnicgpu_regions_end has handled it */
	u32 id;
	unsigned long start, pages;

	struct mutex lock;			/* taken in invalidations: allocate no memory under it */
	unsigned long *mapped;			/* under lock: pages that the NIC may use */
	u32 generation;				/* under lock: number of the last invalidation */
	int error;				/* written under lock: -errno of further VNICGPU_FAULT calls; 0: the NIC still gets pages */
	struct vnicgpu_region_stats stats;	/* under lock; its field refused is unused */
	atomic64_t refused;
};

struct region *vnicgpu_region_get(struct vnicgpu_file *f, u32 id);
void vnicgpu_region_put(struct region *r);

#endif
