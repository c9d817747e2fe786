/* SPDX-License-Identifier: GPL-2.0 */
/* Functions and a struct of Linux 7 that older kernels, back to 6.12, lack or declare differently. */
#ifndef _VNICGPU_COMPAT_H
#define _VNICGPU_COMPAT_H

#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/pci.h>
#include <linux/scatterlist.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 14, 0)
static inline struct dev_pagemap *page_pgmap(const struct page *page)
{
	return page->pgmap;
}
#endif

static inline void vnicgpu_page_init(struct page *page, struct dev_pagemap *pgmap)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 19, 0)
	zone_device_page_init(page);
#elif LINUX_VERSION_CODE < KERNEL_VERSION(7, 0, 0)
	zone_device_page_init(page, 0);
#else
	zone_device_page_init(page, pgmap, 0);
#endif
}

#if __has_include(<linux/dma-buf-mapping.h>)
#include <linux/dma-buf-mapping.h>
#include <linux/pci-p2pdma.h>
#else

struct phys_vec {
	phys_addr_t paddr;
	size_t len;
};

static inline int pcim_p2pdma_init(struct pci_dev *pdev)
{
	return 0;
}

static inline struct p2pdma_provider *pcim_p2pdma_provider(struct pci_dev *pdev, int bar)
{
	return (struct p2pdma_provider *)pdev;
}

static inline void dma_buf_free_sgt(struct dma_buf_attachment *attach, struct sg_table *sgt,
				    enum dma_data_direction dir)
{
	struct scatterlist *sg;
	size_t size = 0;
	int i;

	for_each_sgtable_dma_sg(sgt, sg, i)
		size += sg_dma_len(sg);
	dma_unmap_resource(attach->dev, sg_dma_address(sgt->sgl), size, dir, DMA_ATTR_SKIP_CPU_SYNC);
	sg_free_table(sgt);
	kfree(sgt);
}

/* vec must have one element (n is 1), of length size. The result's entries have at most 1 GiB: the limit is 4 GiB. */
static inline struct sg_table *dma_buf_phys_vec_to_sgt(struct dma_buf_attachment *attach,
						       struct p2pdma_provider *provider, struct phys_vec *vec,
						       size_t n, size_t size, enum dma_data_direction dir)
{
	struct sg_table *sgt = kzalloc(sizeof(*sgt), GFP_KERNEL);
	struct scatterlist *sg;
	dma_addr_t addr;
	int ret, i;

	if (!sgt)
		return ERR_PTR(-ENOMEM);
	ret = sg_alloc_table(sgt, DIV_ROUND_UP(size, SZ_1G), GFP_KERNEL);
	if (ret)
		goto free;
	addr = dma_map_resource(attach->dev, vec->paddr, size, dir, DMA_ATTR_SKIP_CPU_SYNC);
	if (dma_mapping_error(attach->dev, addr)) {
		sg_free_table(sgt);
		ret = -EIO;
		goto free;
	}
	for_each_sgtable_dma_sg(sgt, sg, i) {
		size_t len = min_t(size_t, size, SZ_1G);

		sg_set_page(sg, NULL, len, 0);
		sg_dma_address(sg) = addr;
		sg_dma_len(sg) = len;
		addr += len;
		size -= len;
	}
	return sgt;
free:
	kfree(sgt);
	return ERR_PTR(ret);
}
#endif

#endif
