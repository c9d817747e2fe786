// SPDX-License-Identifier: GPL-2.0
/*
 * vnicgpu is the driver of vnic's GPU. The GPU has memory, in a PCI BAR, and no processor. A guest
 * sees it as QEMU's ivshmem-plain.
 */
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/genalloc.h>
#include <linux/idr.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci-p2pdma.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "internal.h"

static DEFINE_IDA(ids);

DEFINE_STATIC_SRCU(users);

bool vnicgpu_enter(struct vnicgpu *gpu, int *idx)
{
	*idx = srcu_read_lock(&users);
	if (!READ_ONCE(gpu->gone))
		return true;
	srcu_read_unlock(&users, *idx);
	return false;
}

void vnicgpu_exit(int idx)
{
	srcu_read_unlock(&users, idx);
}

static void vnicgpu_free(struct kref *ref)
{
	struct vnicgpu *gpu = container_of(ref, struct vnicgpu, ref);

	if (gpu->pool)
		gen_pool_destroy(gpu->pool);
	ida_free(&ids, gpu->id);
	kvfree(gpu->poisoned);
	kfree(gpu);
}

static void vnicgpu_put(struct vnicgpu *gpu)
{
	kref_put(&gpu->ref, vnicgpu_free);
}

/* misc_open has set file->private_data to the miscdevice. */
static int gpu_open(struct inode *inode, struct file *file)
{
	struct vnicgpu *gpu = container_of(file->private_data, struct vnicgpu, misc);
	struct vnicgpu_file *f;

	f = kzalloc(sizeof(*f), GFP_KERNEL_ACCOUNT);
	if (!f)
		return -ENOMEM;
	f->gpu = gpu;
	f->file = file;
	mutex_init(&f->lock);
	INIT_LIST_HEAD(&f->pieces);
	INIT_LIST_HEAD(&f->regions);
	kref_get(&gpu->ref);
	scoped_guard(mutex, &gpu->lock)
		list_add(&f->list, &gpu->files);
	file->private_data = f;
	return 0;
}

static int gpu_release(struct inode *inode, struct file *file)
{
	struct vnicgpu_file *f = file->private_data;

	scoped_guard(mutex, &f->gpu->lock)
		list_del(&f->list);
	vnicgpu_regions_close(f);
	vnicgpu_free_pieces(f);
	vnicgpu_put(f->gpu);
	mutex_destroy(&f->lock);
	kfree(f);
	return 0;
}

static vm_fault_t gpu_fault(struct vm_fault *vmf)
{
	struct vnicgpu *gpu = vmf->vma->vm_private_data;
	u64 offset = (u64)vmf->pgoff << PAGE_SHIFT;
	vm_fault_t ret = VM_FAULT_SIGBUS;
	int idx;

	if (!vnicgpu_enter(gpu, &idx))
		return ret;
	if (offset < gpu->size)
		ret = vmf_insert_pfn(vmf->vma, vmf->address, PHYS_PFN(gpu->start + offset));
	vnicgpu_exit(idx);
	return ret;
}

static const struct vm_operations_struct gpu_vm_ops = {
	.fault = gpu_fault,
};

int vnicgpu_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct vnicgpu_file *f = file->private_data;
	int ret;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_pgoff > f->gpu->size >> PAGE_SHIFT)
		return -EACCES;
	ret = vnicgpu_owns(f, (u64)vma->vm_pgoff << PAGE_SHIFT, vma->vm_end - vma->vm_start);
	if (ret)
		return ret;
	vm_flags_set(vma, VM_PFNMAP | VM_IO | VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_page_prot = pgprot_writecombine(vma->vm_page_prot);
	vma->vm_private_data = f->gpu;
	vma->vm_ops = &gpu_vm_ops;
	return 0;
}

static int gpu_call(struct file *file, unsigned int cmd, void *arg)
{
	struct vnicgpu_file *f = file->private_data;
	struct vnicgpu *gpu = f->gpu;
	struct vnicgpu_info *info = arg;
	struct vnicgpu_mailbox *mailbox = arg;
	int ret;

	switch (cmd) {
	case VNICGPU_GET_INFO:
		info->version = VNICGPU_VERSION;
		info->mapped = atomic_read(&gpu->mapped);
		info->size = gpu->size;
		info->free = gen_pool_avail(gpu->pool);
		info->private = atomic_long_read(&gpu->private);
		info->to_gpu = atomic64_read(&gpu->to_gpu);
		info->to_ram = atomic64_read(&gpu->to_ram);
		info->faulted = atomic64_read(&gpu->faulted);
		info->evicted = atomic64_read(&gpu->evicted);
		return 0;
	case VNICGPU_ALLOC:
		return vnicgpu_alloc(f, arg);
	case VNICGPU_EXPORT:
		return vnicgpu_export(file, arg);
	case VNICGPU_MIGRATE:
		return vnicgpu_migrate(gpu, arg);
	case VNICGPU_MAILBOX:
		ret = vnicgpu_mailbox(gpu);
		mailbox->offset = gpu->mailbox;
		mailbox->size = VNICGPU_MAILBOX_SIZE;
		mailbox->ack_ms = gpu->ack_ms;
		return ret;
	case VNICGPU_REGION_OPEN:
		return vnicgpu_region_open(f, arg);
	case VNICGPU_REGION_STATS:
		return vnicgpu_region_stats(f, arg);
	case VNICGPU_POISON:
		return vnicgpu_poison(gpu, arg);
	}
	return -ENOTTY;
}

static int gpu_do(struct file *file, unsigned int cmd, void *arg)
{
	struct vnicgpu_file *f = file->private_data;
	int ret, idx;

	switch (cmd) {
	case VNICGPU_WHERE:
		return vnicgpu_where(f->gpu, arg);
	case VNICGPU_FAULT:
		return vnicgpu_region_fault(f, arg);
	case VNICGPU_REGION_CLOSE:
		return vnicgpu_region_close(f, arg);
	}
	if (!vnicgpu_enter(f->gpu, &idx))
		return -ENODEV;
	ret = gpu_call(file, cmd, arg);
	vnicgpu_exit(idx);
	return ret;
}

/* EFAULT: if only the result could not be copied to the program, the ioctl's effect remains. */
static long gpu_ioctl(struct file *file, unsigned int cmd, unsigned long data)
{
	union {
		struct vnicgpu_info info;
		struct vnicgpu_alloc alloc;
		struct vnicgpu_export export;
		struct vnicgpu_migrate migrate;
		struct vnicgpu_where where;
		struct vnicgpu_mailbox mailbox;
		struct vnicgpu_region_open region_open;
		struct vnicgpu_region_close region_close;
		struct vnicgpu_fault fault;
		struct vnicgpu_region_stats region_stats;
		struct vnicgpu_poison poison;
	} arg = {};
	void __user *user = (void __user *)data;
	size_t size = _IOC_SIZE(cmd);
	int ret;

	if (size > sizeof(arg))
		return -ENOTTY;
	if (_IOC_DIR(cmd) & _IOC_WRITE && copy_from_user(&arg, user, size))
		return -EFAULT;
	ret = gpu_do(file, cmd, &arg);
	/* If VNICGPU_MIGRATE fails while it moves pages, it reports how many it moved before. */
	if ((!ret || cmd == VNICGPU_MIGRATE) && _IOC_DIR(cmd) & _IOC_READ && copy_to_user(user, &arg, size))
		return -EFAULT;
	return ret;
}

static const struct file_operations gpu_fops = {
	.owner = THIS_MODULE,
	.open = gpu_open,
	.release = gpu_release,
	.mmap = vnicgpu_mmap,
	.unlocked_ioctl = gpu_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static int gpu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct vnicgpu *gpu;
	int ret;

	ret = pcim_enable_device(pdev);
	if (ret)
		return ret;
	if (!(pci_resource_flags(pdev, VNICGPU_BAR) & IORESOURCE_MEM) || !pci_resource_len(pdev, VNICGPU_BAR))
		return dev_err_probe(&pdev->dev, -ENODEV, "BAR %d has no place: it does not fit below the bridge\n",
				     VNICGPU_BAR);
	ret = pcim_request_region(pdev, VNICGPU_BAR, KBUILD_MODNAME);
	if (ret)
		return ret;
	ret = pcim_p2pdma_init(pdev);
	if (ret)
		return dev_err_probe(&pdev->dev, ret, "no peer-to-peer DMA\n");

	gpu = kzalloc(sizeof(*gpu), GFP_KERNEL);
	if (!gpu)
		return -ENOMEM;
	gpu->id = ida_alloc(&ids, GFP_KERNEL);
	if (gpu->id < 0) {
		ret = gpu->id;
		kfree(gpu);
		return ret;
	}
	kref_init(&gpu->ref);
	mutex_init(&gpu->lock);
	INIT_LIST_HEAD(&gpu->files);
	mutex_init(&gpu->private_lock);
	mutex_init(&gpu->mailbox_lock);
	spin_lock_init(&gpu->slots_lock);
	spin_lock_init(&gpu->poison_lock);
	mutex_init(&gpu->regions_lock);
	INIT_LIST_HEAD(&gpu->regions);
	init_waitqueue_head(&gpu->unmapped);
	gpu->pdev = pdev;
	gpu->start = pci_resource_start(pdev, VNICGPU_BAR);
	gpu->size = pci_resource_len(pdev, VNICGPU_BAR);
	gpu->provider = pcim_p2pdma_provider(pdev, VNICGPU_BAR);
	if (!gpu->provider) {
		ret = -EINVAL;
		goto put;
	}
	gpu->mem = devm_memremap(&pdev->dev, gpu->start, gpu->size, MEMREMAP_WC);
	if (IS_ERR(gpu->mem)) {
		ret = PTR_ERR(gpu->mem);
		goto put;
	}
	gpu->pool = gen_pool_create(PAGE_SHIFT, NUMA_NO_NODE);
	if (!gpu->pool) {
		ret = -ENOMEM;
		goto put;
	}
	ret = gen_pool_add(gpu->pool, gpu->start, gpu->size, NUMA_NO_NODE);
	if (ret)
		goto put;
	pci_set_drvdata(pdev, gpu);

	snprintf(gpu->name, sizeof(gpu->name), "vnicgpu%d", gpu->id);
	gpu->misc.minor = MISC_DYNAMIC_MINOR;
	gpu->misc.name = gpu->name;
	gpu->misc.fops = &gpu_fops;
	gpu->misc.parent = &pdev->dev;
	ret = misc_register(&gpu->misc);
	if (ret)
		goto put;
	dev_info(&pdev->dev, "%s: %llu MiB\n", gpu->name, (u64)gpu->size >> 20);
	return 0;
put:
	vnicgpu_put(gpu);
	return ret;
}

/* Waits until no device has a mapping of a dma-buf of the GPU: DMA to a removed BAR could reach anything. */
static void gpu_remove(struct pci_dev *pdev)
{
	struct vnicgpu *gpu = pci_get_drvdata(pdev);
	struct vnicgpu_file *f;

	misc_deregister(&gpu->misc);
	WRITE_ONCE(gpu->gone, true);
	synchronize_srcu(&users);
	vnicgpu_regions_end(gpu);
	vnicgpu_private_end(gpu);
	/* Files may belong to different device nodes of the GPU, and so have different f_mapping. */
	scoped_guard(mutex, &gpu->lock)
		list_for_each_entry(f, &gpu->files, list)
			unmap_mapping_range(f->file->f_mapping, 0, 0, 1);
	while (!wait_event_timeout(gpu->unmapped, !atomic_read(&gpu->mapped), 10 * HZ))
		dev_warn(&pdev->dev, "removal waits for devices to unmap dma-bufs: %d mappings\n",
			 atomic_read(&gpu->mapped));
	vnicgpu_put(gpu);
}

static const struct pci_device_id gpu_ids[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_REDHAT_QUMRANET, 0x1110) }, /* QEMU's ivshmem devices */
	{ }
};
MODULE_DEVICE_TABLE(pci, gpu_ids);

static struct pci_driver gpu_driver = {
	.name = KBUILD_MODNAME,
	.id_table = gpu_ids,
	.probe = gpu_probe,
	.remove = gpu_remove,
};
module_pci_driver(gpu_driver);

MODULE_DESCRIPTION("The GPU of vnic: memory in a PCI BAR, as dma-bufs");
MODULE_LICENSE("GPL");
