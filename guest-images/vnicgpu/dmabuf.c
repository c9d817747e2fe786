// SPDX-License-Identifier: GPL-2.0
/*
 * Exports ranges of a GPU's memory as dma-bufs (Documentation/driver-api/dma-buf.rst). An exported
 * range never moves, so importers without a move callback, such as devmem TCP's binding, are
 * accepted, too.
 */
#include <linux/dma-buf.h>
#include <linux/file.h>
#include <linux/iommu.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci-p2pdma.h>
#include <linux/slab.h>

#include "internal.h"

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
MODULE_IMPORT_NS(DMA_BUF);
#else
MODULE_IMPORT_NS("DMA_BUF");
#endif

struct vnicgpu_buf {
	struct vnicgpu *gpu;
	struct file *file;
	u64 offset, size;
};

static struct pci_dev *common_port(struct pci_dev *a, struct pci_dev *b)
{
	struct pci_dev *x, *y;

	for (x = pci_upstream_bridge(a); x; x = pci_upstream_bridge(x))
		for (y = pci_upstream_bridge(b); y; y = pci_upstream_bridge(y))
			if (x == y)
				return x;
	return NULL;
}

/*
 * Returns whether dev's DMA to the GPU may fail at a vIOMMU. For two devices below one switch, Linux
 * may use bus addresses. QEMU's switches do not forward between their ports, so such an address
 * reaches the vIOMMU. If the vIOMMU translates dev's DMA, it has no translation for the address.
 */
static bool iommu_breaks(struct vnicgpu *gpu, struct device *dev)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);

	if (!domain || domain->type == IOMMU_DOMAIN_IDENTITY || !dev_is_pci(dev) ||
	    !common_port(gpu->pdev, to_pci_dev(dev)))
		return false;
	dev_warn(dev, "cannot reach %s: a vIOMMU translates what is sent below a switch: iommu=pt, or no switch\n",
		 pci_name(gpu->pdev));
	return true;
}

static int buf_attach(struct dma_buf *dmabuf, struct dma_buf_attachment *attach)
{
	struct vnicgpu_buf *buf = dmabuf->priv;
	struct vnicgpu *gpu = buf->gpu;
	int ret, idx;

	if (!vnicgpu_enter(gpu, &idx))
		return -ENODEV;
	ret = pci_p2pdma_distance_many(gpu->pdev, &attach->dev, 1, true) < 0 ||
	      iommu_breaks(gpu, attach->dev) ? -EOPNOTSUPP : 0;
	vnicgpu_exit(idx);
	return ret;
}

static struct sg_table *buf_map(struct dma_buf_attachment *attach, enum dma_data_direction dir)
{
	struct vnicgpu_buf *buf = attach->dmabuf->priv;
	struct vnicgpu *gpu = buf->gpu;
	struct phys_vec vec = { .paddr = gpu->start + buf->offset, .len = buf->size };
	struct sg_table *sgt;
	int idx;

	if (!vnicgpu_enter(gpu, &idx))
		return ERR_PTR(-ENODEV);
	sgt = dma_buf_phys_vec_to_sgt(attach, gpu->provider, &vec, 1, buf->size, dir);
	if (!IS_ERR(sgt))
		atomic_inc(&gpu->mapped);
	vnicgpu_exit(idx);
	return sgt;
}

static void buf_unmap(struct dma_buf_attachment *attach, struct sg_table *sgt, enum dma_data_direction dir)
{
	struct vnicgpu_buf *buf = attach->dmabuf->priv;
	struct vnicgpu *gpu = buf->gpu;

	dma_buf_free_sgt(attach, sgt, dir);
	if (atomic_dec_and_test(&gpu->mapped))
		wake_up_all(&gpu->unmapped);
}

static int buf_mmap(struct dma_buf *dmabuf, struct vm_area_struct *vma)
{
	struct vnicgpu_buf *buf = dmabuf->priv;

	vma_set_file(vma, buf->file);
	vma->vm_pgoff += buf->offset >> PAGE_SHIFT;
	return vnicgpu_mmap(buf->file, vma);
}

static void buf_release(struct dma_buf *dmabuf)
{
	struct vnicgpu_buf *buf = dmabuf->priv;

	fput(buf->file);
	kfree(buf);
}

static const struct dma_buf_ops buf_ops = {
	.attach = buf_attach,
	.map_dma_buf = buf_map,
	.unmap_dma_buf = buf_unmap,
	.mmap = buf_mmap,
	.release = buf_release,
};

int vnicgpu_export(struct file *file, struct vnicgpu_export *arg)
{
	struct vnicgpu_file *f = file->private_data;
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct vnicgpu_buf *buf;
	struct dma_buf *dmabuf;
	int ret;

	if (arg->flags & ~O_CLOEXEC)
		return -EINVAL;
	ret = vnicgpu_owns(f, arg->offset, arg->size);
	if (ret)
		return ret;
	buf = kzalloc(sizeof(*buf), GFP_KERNEL_ACCOUNT);
	if (!buf)
		return -ENOMEM;
	buf->gpu = f->gpu;
	buf->file = get_file(file);
	buf->offset = arg->offset;
	buf->size = arg->size;

	info.ops = &buf_ops;
	info.size = arg->size;
	info.flags = arg->flags | O_RDWR;
	info.priv = buf;
	dmabuf = dma_buf_export(&info);
	if (IS_ERR(dmabuf)) {
		fput(buf->file);
		kfree(buf);
		return PTR_ERR(dmabuf);
	}
	ret = dma_buf_fd(dmabuf, arg->flags);
	if (ret < 0) {
		dma_buf_put(dmabuf);
		return ret;
	}
	arg->fd = ret;
	return 0;
}
