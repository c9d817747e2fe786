/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _VNICGPU_INTERNAL_H
#define _VNICGPU_INTERNAL_H

#include <linux/bitmap.h>
#include <linux/cleanup.h>
#include <linux/kref.h>
#include <linux/memremap.h>
#include <linux/miscdevice.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/spinlock.h>
#include <linux/srcu.h>
#include <linux/wait.h>

#include "compat.h"
#include "vnicgpu.h"

#define VNICGPU_MAILBOX_SIZE 4096
#define VNICGPU_SLOTS 63

struct gen_pool;
struct resource;
struct p2pdma_provider;
struct vm_area_struct;

/* The BAR with the memory of QEMU's ivshmem-plain (docs/specs/ivshmem-spec.rst). */
#define VNICGPU_BAR 2

/* A GPU. Between a vnicgpu_enter that returned true and vnicgpu_exit, its PCI device and its BAR may be used. */
struct vnicgpu {
	struct kref ref;
	struct pci_dev *pdev;
	struct miscdevice misc;
	char name[16];
	int id;

	resource_size_t start, size;		/* of the BAR */
	struct p2pdma_provider *provider;
	void *mem;				/* the kernel's mapping of the BAR */
	struct gen_pool *pool;			/* free addresses of the BAR */

	bool gone;
	struct mutex lock;
	struct list_head files;			/* under lock */

	atomic_t mapped;			/* number of present mappings of dma-bufs for devices */
	wait_queue_head_t unmapped;

	/* State of private.c. */
	struct mutex private_lock;
	struct resource *region;		/* written under private_lock, until removal: addresses of pgmap; NULL: none */
	struct dev_pagemap pgmap;
	atomic_long_t private;			/* pages in use by programs */
	atomic64_t to_gpu, to_ram, faulted, evicted;

	/* State of mailbox.c; mailbox and ack_ms do not change after has_mailbox was set. */
	struct mutex mailbox_lock;
	bool has_mailbox;			/* under mailbox_lock, until removal */
	u64 mailbox;				/* offset of the mailbox page */
	unsigned int ack_ms;			/* how long the NIC may take to answer */
	spinlock_t slots_lock;
	DECLARE_BITMAP(slots, VNICGPU_SLOTS);	/* under slots_lock: slots for which a vnicgpu_tell waits */
	__le32 *unanswered;			/* under slots_lock: state of the last note that timed out; NULL: none, or its answer was seen */

	/* State of poison.c. */
	unsigned long *poisoned;		/* bit map of free pages filled with the poison byte; NULL before the first VNICGPU_POISON */
	spinlock_t poison_lock;
	u64 left, broken;			/* under poison_lock */

	/* State of region.c. */
	struct mutex regions_lock;
	struct list_head regions;		/* under regions_lock */
};

/*
 * vnicgpu_enter returns whether the GPU is present. If so, the GPU's removal waits until the caller
 * calls vnicgpu_exit. Before that call, the caller may sleep, but must not read or write a program's
 * memory by copy_from_user or copy_to_user: a program that serves that memory's page faults
 * (userfaultfd) could delay the removal for ever. vnicgpu_enter does not wait for a removal in
 * progress.
 */
bool vnicgpu_enter(struct vnicgpu *gpu, int *idx);
void vnicgpu_exit(int idx);

struct vnicgpu_file {
	struct vnicgpu *gpu;
	struct file *file;
	struct list_head list;
	struct mutex lock;
	struct list_head pieces;		/* under lock: the file's allocations (memory.c) */
	struct list_head regions;		/* under lock */
	unsigned int nregions;			/* under lock; includes regions that are being opened */
};

int vnicgpu_alloc(struct vnicgpu_file *f, struct vnicgpu_alloc *arg);

/*
 * Returns 0 if [offset, offset + size) is in one allocation of the file. EINVAL: it is empty or not
 * whole pages. EACCES: it is not in one allocation of the file.
 */
int vnicgpu_owns(struct vnicgpu_file *f, u64 offset, u64 size);

/* Frees the file's allocations. Call it after the file's last user has gone. */
void vnicgpu_free_pieces(struct vnicgpu_file *f);

int vnicgpu_mmap(struct file *file, struct vm_area_struct *vma);

/* The dma-buf keeps a reference to the file until its release. */
int vnicgpu_export(struct file *file, struct vnicgpu_export *arg);

/* vnicgpu_migrate and vnicgpu_where work on the memory of the calling program. */
int vnicgpu_migrate(struct vnicgpu *gpu, struct vnicgpu_migrate *arg);
int vnicgpu_where(struct vnicgpu *gpu, const struct vnicgpu_where *arg);

/* Sets *offset if the page is in this GPU, else returns false. Call it between vnicgpu_enter and vnicgpu_exit. */
bool vnicgpu_private_at(const struct vnicgpu *gpu, const struct page *page, u64 *offset);

/*
 * Moves programs' pages in the GPU to RAM, and waits until none is left. Call it when all callers of
 * vnicgpu_enter have called vnicgpu_exit and no other can enter.
 */
void vnicgpu_private_end(struct vnicgpu *gpu);

/*
 * Call vnicgpu_poison_left when a program's page in the GPU is freed, and vnicgpu_poison_taken when
 * free memory was allocated. Interrupts may be off.
 */
void vnicgpu_poison_left(struct vnicgpu *gpu, u64 offset);
void vnicgpu_poison_taken(struct vnicgpu *gpu, u64 offset, u64 size);

int vnicgpu_poison(struct vnicgpu *gpu, struct vnicgpu_poison *arg);

/* Makes the mailbox, unless the GPU has one. ENOMEM: no free page in the GPU. */
int vnicgpu_mailbox(struct vnicgpu *gpu);

/* Frees the mailbox, if there is one. Call it when no further notes can be sent. */
void vnicgpu_mailbox_end(struct vnicgpu *gpu);

/*
 * For a program's first notifier, Linux takes all locks of its memory, and gives up with EINTR if
 * a signal is pending (mm/vma.c, mm_take_all_locks). As fork does (kernel/fork.c), vnicgpu_watch then
 * returns ERESTARTNOINTR: Linux restarts the ioctl, whose changes the caller must undo.
 */
static inline int vnicgpu_watch(struct mmu_interval_notifier *n, struct mm_struct *mm, unsigned long start,
				unsigned long size, const struct mmu_interval_notifier_ops *ops)
{
	int ret = mmu_interval_notifier_insert(n, mm, start, size, ops);

	return ret == -EINTR ? -ERESTARTNOINTR : ret;
}

/* A note asks the NIC to release pages of a region. */
struct vnicgpu_note {
	u32 region, generation, reason;
	u64 first, pages;
};

/*
 * Sends a note, and waits until the NIC has released the pages. ETIMEDOUT: there was no free slot or
 * no answer within gpu->ack_ms, or the last note that timed out is still unanswered. vnicgpu_tell
 * sleeps, allocates nothing, and no signal interrupts it.
 */
int vnicgpu_tell(struct vnicgpu *gpu, const struct vnicgpu_note *note);

/*
 * vnicgpu_region_open opens a region of the calling program's memory. Any program that has the file
 * may call the other functions. Do not call vnicgpu_region_close and vnicgpu_region_fault between
 * vnicgpu_enter and vnicgpu_exit.
 */
int vnicgpu_region_open(struct vnicgpu_file *f, struct vnicgpu_region_open *arg);
int vnicgpu_region_stats(struct vnicgpu_file *f, struct vnicgpu_region_stats *arg);
int vnicgpu_region_close(struct vnicgpu_file *f, const struct vnicgpu_region_close *arg);
int vnicgpu_region_fault(struct vnicgpu_file *f, struct vnicgpu_fault *arg);

/* Closes the file's regions. Call it after the file's last user has gone. */
void vnicgpu_regions_close(struct vnicgpu_file *f);

/* Takes the pages of all regions of the GPU from the NIC, and then frees the mailbox. */
void vnicgpu_regions_end(struct vnicgpu *gpu);

#endif
