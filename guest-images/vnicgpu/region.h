/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _VNICGPU_REGION_H
#define _VNICGPU_REGION_H

#include "internal.h"

/* Memory of a program whose pages a NIC gets on demand. */
struct region {
	struct mmu_interval_notifier notifier;
	struct kref ref;			/* of the file's list, and of functions that use the region without vnicgpu_file.lock */
	struct vnicgpu *gpu;
	struct mm_struct *mm;			/* the address space with the memory; if the program has exited, without page tables */
	struct list_head list;
	struct list_head of_gpu;
	bool ended;				/* under gpu->regions_lock: vnicgpu_regions_end ends it or has ended it */
	u32 id;
	unsigned long start, pages;

	struct mutex lock;			/* taken in invalidations: allocate no memory under it */
	unsigned long *mapped;			/* under lock: bitmap of the pages that the NIC may use */
	u32 generation;				/* under lock: number of the last take_back (region.c) */
	int error;				/* written under lock: -errno of further VNICGPU_FAULT calls; 0: the NIC still gets pages */
	struct vnicgpu_region_stats stats;	/* under lock; its fields id and refused are unused */
	atomic64_t refused;
};

struct region *vnicgpu_region_get(struct vnicgpu_file *f, u32 id);
void vnicgpu_region_put(struct region *r);

#endif
